"""Decoding modes: what an evaluation compares.

Knows nothing about benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from marslm.core.accept import Tau
from marslm.errors import InputError
from marslm.runtime.params import SamplingParams
from marslm.strategies.registry import check_strategy, strategy_names

BASE = "base"
"""The model without its adapter, one token a forward; the others decode the adapted model."""

_ONE_TOKEN = ("ar", BASE)
_WITH_TAU = ("mars", "block_diffusion")


@dataclass(frozen=True)
class Mode:
    """A strategy, with tau where it has one, and B where it is not the trained one."""

    strategy: str
    tau: Tau | str | None = None
    block: int | None = None

    @property
    def name(self) -> str:
        """A name for people and folders."""
        tau = "" if self.tau is None else f"-{str(self.tau).replace(':', '-')}"
        block = "" if self.block is None else f"-B{self.block}"
        return f"{self.strategy}{tau}{block}"

    @property
    def arguments(self) -> dict[str, Any]:
        """What MarsLM takes."""
        strategy = "ar" if self.strategy == BASE else self.strategy
        tau = {} if self.tau is None else {"tau": self.tau}
        return {"strategy": strategy, "block": self.block, **tau}


def modes_of(
    strategies: Sequence[str], taus: Sequence[Tau | str], blocks: Sequence[int | None] = (None,)
) -> list[Mode]:
    """Return strategies x tau x B, as far as each strategy has them; InputError for a bad one."""
    if not strategies:
        raise InputError("no strategy is named: give some, such as --strategies ar,lossless")
    for tau, block in product(taus, blocks):
        SamplingParams(tau=tau, block=block)
    modes = []
    for strategy in strategies:
        if strategy != BASE:
            _check(strategy)
        own_taus = taus if strategy in _WITH_TAU else [None]
        own_blocks = [None] if strategy in _ONE_TOKEN else blocks
        modes += [Mode(strategy, *rest) for rest in product(own_taus, own_blocks)]
    return list(dict.fromkeys(modes))


def _check(strategy: str) -> None:
    try:
        check_strategy(strategy)
    except InputError as error:
        names = ", ".join([BASE, *strategy_names()])
        raise InputError(f"unknown strategy {strategy!r}: choose from {names}") from error
