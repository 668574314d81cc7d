"""The live speed knob: the strategy, tau and B of requests that set none of their own.

Read at every step, so turning it works in the middle of an answer. Knows nothing about who turns
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass

from marslm.core.accept import check_tau
from marslm.errors import InputError
from marslm.strategies.registry import check_strategy


@dataclass
class SpeedKnob:
    """Defaults that may change while requests run; assignments are checked.

    block: the largest B of strategies that read masks; None is the trained one. check: raises
    InputError for a strategy that cannot be turned to.
    """

    strategy: str = "lossless"
    tau: float = 0.9
    block: int | None = None
    check: InitVar[Callable[[str], None]] = check_strategy

    def __post_init__(self, check: Callable[[str], None]) -> None:
        """Ask `check` from now on; the defaults of an engine are not built before they are used."""
        self._check = check

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse an unknown strategy and a tau or block that cannot be; the old value stays."""
        if name == "tau":
            if not isinstance(value, (int, float)):
                raise InputError(f"tau is {value!r}: give a number above 0 and at most 1")
            check_tau(value)
        if name == "block" and not (value is None or (isinstance(value, int) and value >= 1)):
            raise InputError(f"block is {value!r}: give at least 1, or None for the trained one")
        if name == "strategy":
            getattr(self, "_check", check_strategy)(str(value))
        super().__setattr__(name, value)
