"""Strategies by name.

Knows nothing about any one of them beyond how to build it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from marslm.errors import InputError
from marslm.strategies.autoregressive import Autoregressive
from marslm.strategies.base import EngineFacts, Strategy
from marslm.strategies.block_diffusion import BlockDiffusion
from marslm.strategies.draft_model import DraftModel, DraftModelMars
from marslm.strategies.jacobi import Jacobi
from marslm.strategies.lossless import Lossless, LosslessChain, LosslessTree
from marslm.strategies.mars import Mars
from marslm.strategies.medusa import Medusa
from marslm.strategies.prompt_lookup import PromptLookup

Factory: TypeAlias = Callable[[EngineFacts], Strategy]
"""Builds the strategy object of one engine."""

_FACTORIES: dict[str, Factory] = {
    "ar": Autoregressive,
    "mars": Mars,
    "lossless": Lossless,
    "lossless-chain": LosslessChain,
    "lossless-tree": LosslessTree,
    "block_diffusion": BlockDiffusion,
    "jacobi": Jacobi,
    "prompt_lookup": PromptLookup,
    "draft_model": DraftModel,
    "draft_model-mars": DraftModelMars,
    "medusa": Medusa,
}


def register_strategy(name: str, factory: Factory) -> None:
    """Make a strategy available by name; an engine builds its own when it is first asked for."""
    _FACTORIES[name] = factory


def strategy_names() -> list[str]:
    """Return the names that `create_strategy` knows."""
    return list(_FACTORIES)


def exact_strategies() -> list[str]:
    """Return the names of those whose output equals one-token decoding's."""
    return [name for name, factory in _FACTORIES.items() if getattr(factory, "exact", False)]


def check_strategy(name: str) -> None:
    """Raise InputError for an unknown name."""
    if name not in _FACTORIES:
        raise InputError(f"unknown strategy {name!r}: choose from {', '.join(_FACTORIES)}")


def create_strategy(name: str, facts: EngineFacts) -> Strategy:
    """Return a new strategy for an engine; InputError for an unknown name."""
    check_strategy(name)
    return _FACTORIES[name](facts)
