"""The load policy: makes decoding faster while a target is missed, and slower again after.

`LoadPolicy` decides on a level, 0 being what the operator set and each one more being faster; a
`Dial` says what a level means. Knows nothing about how load is measured, nor about time beyond the
order of observations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from marslm.core.accept import check_tau
from marslm.engine.speed import SpeedKnob
from marslm.errors import InputError

Measure: TypeAlias = Literal["tpot", "queue"]

RELIEF = 0.7
"""Only below this part of the limit is there room to go back: between the two, nothing moves."""

PATIENCE = 3
"""Observations in a row before a move towards speed; a move back takes twice as many at first."""

LONGEST_WAIT = 32
"""A move back that had to be undone doubles the wait before the next, up to this many times."""


@dataclass(frozen=True)
class Target:
    """What should hold: seconds per output token, or requests that wait, stay below `limit`."""

    measure: Measure
    limit: float

    def __str__(self) -> str:
        if self.measure == "tpot":
            return f"tpot={self.limit * 1000:g}ms"
        return f"queue={self.limit:g}"


def parse_target(text: str) -> Target:
    """Return the target written as `tpot=40ms`, `tpot=0.5s` or `queue=4`; InputError otherwise."""
    found = re.fullmatch(r"(tpot)=([\d.]+)(ms|s)|(queue)=([\d.]+)", text)
    try:
        if found and found[1]:
            target = Target("tpot", float(found[2]) / (1000 if found[3] == "ms" else 1))
        elif found:
            target = Target("queue", float(found[5]))
        else:
            raise ValueError
        if target.limit <= 0:
            raise ValueError
    except ValueError as error:
        raise InputError(
            f"--slo is {text!r}: give a time per output token such as tpot=40ms, or a number of "
            "waiting requests such as queue=4"
        ) from error
    return target


class PaceMeter:
    """Seconds per output token since it was last read."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._seconds = 0.0
        self._tokens = 0

    def add(self, seconds: float, tokens: int) -> None:
        """Count one piece of an answer and the time since the piece before it."""
        self._seconds += seconds
        self._tokens += tokens

    def take(self) -> float | None:
        """Return the mean since the last call, None without tokens, and start anew."""
        mean = self._seconds / self._tokens if self._tokens else None
        self._seconds, self._tokens = 0.0, 0
        return mean


class LoadPolicy:
    """Hysteresis over levels 0..levels-1.

    A level goes up after `PATIENCE` observations over the limit and down after twice as many below
    `RELIEF` of it. If going down proves wrong, the next attempt waits twice as long: under a steady
    load the level comes to rest.
    """

    def __init__(self, limit: float, levels: int) -> None:
        """Start at level 0, the operator's own setting."""
        self.level = 0
        self._limit = limit
        self._levels = levels
        self._over = 0
        self._under = 0
        self._wait = 2 * PATIENCE
        self._last_went_down = False

    def observe(self, value: float | None) -> bool:
        """Take a measurement, None for an idle server; return whether the level has moved."""
        over = value is not None and value > self._limit
        under = value is None or value < RELIEF * self._limit
        self._over = self._over + 1 if over else 0
        self._under = self._under + 1 if under else 0
        if self._over >= PATIENCE and self.level < self._levels - 1:
            self._move(+1)
        elif self._under >= self._wait and self.level > 0:
            self._move(-1)
        else:
            return False
        return True

    def _move(self, step: int) -> None:
        if step > 0 and self._last_went_down:
            self._wait = min(2 * self._wait, 2 * PATIENCE * LONGEST_WAIT)
        self._last_went_down = step < 0
        self.level += step
        self._over = self._under = 0


@dataclass(frozen=True)
class Dial:
    """What levels mean: the value of each, the slowest first, and where it is set."""

    name: str
    values: Sequence[float]
    set: Callable[[float], None]


def block_dial(knob: SpeedKnob, largest: int) -> Dial:
    """Return a dial over B from `largest` down to 1: smaller windows leave others more of a step.

    For exact strategies, whose answers no B changes.
    """

    def set_block(value: float) -> None:
        knob.block = int(value)

    return Dial("block", list(range(largest, 0, -1)), set_block)


def check_tau_range(lowest: float, highest: float) -> None:
    """Raise InputError unless 0 < lowest < highest <= 1."""
    check_tau(lowest)
    check_tau(highest)
    if lowest >= highest:
        raise InputError(
            f"the policy's tau range is {lowest}..{highest}: give the lower bound first"
        )


def tau_dial(knob: SpeedKnob, lowest: float, highest: float, levels: int = 6) -> Dial:
    """Return a dial from the knob's own tau, at most `highest`, down to `lowest`.

    A tau that is no higher than `lowest` is its only value. InputError as in `check_tau_range`.
    """
    check_tau_range(lowest, highest)
    own = min(knob.tau, highest)
    step = (own - lowest) / (levels - 1)
    faster = [round(own - step * i, 4) for i in range(1, levels)] if own > lowest else []

    def set_tau(value: float) -> None:
        knob.tau = value

    return Dial("tau", [own, *faster], set_tau)
