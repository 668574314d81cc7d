"""Strategies by name.

Knows nothing about any one of them beyond how to build it.
"""

from __future__ import annotations

from collections.abc import Callable

from marslm.errors import InputError
from marslm.strategies.autoregressive import Autoregressive
from marslm.strategies.base import Strategy
from marslm.strategies.lossless import Lossless
from marslm.strategies.mars import Mars

_FACTORIES: dict[str, Callable[[int], Strategy]] = {
    "ar": lambda mask_token_id: Autoregressive(),
    "mars": Mars,
    "lossless": Lossless,
}


def register_strategy(name: str, factory: Callable[[int], Strategy]) -> None:
    """Make a strategy available by name; `factory` is given [MASK]'s token id."""
    _FACTORIES[name] = factory


def strategy_names() -> list[str]:
    """Return the names that `create_strategy` knows."""
    return list(_FACTORIES)


def check_strategy(name: str) -> None:
    """Raise InputError for an unknown name."""
    if name not in _FACTORIES:
        raise InputError(f"unknown strategy {name!r}: choose from {', '.join(_FACTORIES)}")


def create_strategy(name: str, mask_token_id: int) -> Strategy:
    """Return a new strategy; InputError for an unknown name."""
    check_strategy(name)
    return _FACTORIES[name](mask_token_id)
