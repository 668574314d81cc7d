"""What a step costs by its number of rows: a running estimate that outliers and drift do not spoil.

Several rows are nearly free until the machine is bound by arithmetic, and where that begins depends
on the model, the machine and its load, so it is measured while decoding. Steps with [MASK] rows are
a curve of their own, since an adapter's update costs too. Knows nothing about strategies.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from statistics import median

_KNOTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512)
"""Row counts that are told apart; a step belongs to the nearest."""

_REMEMBERED = 15
"""Steps of one row count whose median is its cost."""

_DOWN, _UP, _WITHOUT_MASKS, _HOPE = 0.10, 0.02, 0.8, 0.2
"""Guesses where little is measured: what a row less saves and a row more costs, as shares of one
row's cost; a step without masks as a share of one with; how far a first sample may be too high.
They are hopeful, so that what may be good is soon measured."""

_DRIFT, _LARGEST_SURPRISE = 0.25, 0.5
"""How fast the machine's pace follows a step's surprise (a log ratio), and how far one counts."""


class StepCosts:
    """Seconds of a step by rows, with and without masks among them."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._curves = {masks: _Curve() for masks in (False, True)}
        self._pace = 0.0  # log of how slow the machine is now; samples are stored without it

    def observe(self, rows: int, masks: bool, seconds: float) -> None:
        """Take in one measured step."""
        curve, knot = self._curves[masks], _nearest(rows)
        if knot in curve.medians:
            surprise = math.log(seconds / curve.medians[knot]) - self._pace
            self._pace += _DRIFT * max(-_LARGEST_SURPRISE, min(_LARGEST_SURPRISE, surprise))
        curve.add(knot, seconds / math.exp(self._pace))

    def seconds(self, rows: int, masks: bool) -> float:
        """Return the estimate for a step; without any measurement only ratios mean something."""
        with_masks, without = self._curves[True], self._curves[False]
        cost = with_masks.at(rows)
        if not masks:
            # One stray sample cannot make rows without masks look dearer than rows with them.
            cost = min(without.at(rows), cost * (1 if without.hopes else _WITHOUT_MASKS))
        elif not with_masks.hopes:
            cost = without.at(rows)
        if not (with_masks.hopes or without.hopes):
            cost = 1 + _UP * (rows - 1)
        return cost * math.exp(self._pace)


class AssumedCosts(StepCosts):
    """Costs that no measurement changes: each row more costs 2 % of the first.

    Steps are then the same on every machine, for figures that tell of a model alone.
    """

    def observe(self, rows: int, masks: bool, seconds: float) -> None:
        """Take no notice."""


class _Curve:
    """Cost by rows: measured at knots, read between and beyond them."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self.medians: dict[int, float] = {}
        self._hopes: dict[int, float] = {}
        self.hopes: dict[int, float] = {}
        self._knots: list[int] = []

    def add(self, knot: int, seconds: float) -> None:
        samples = self._samples.setdefault(knot, deque(maxlen=_REMEMBERED))
        samples.append(seconds)
        self.medians[knot] = median(samples)
        # The first steps of a new shape are often slow, and what looks slow is not tried again.
        hope = self.medians[knot] * (1 - _HOPE / len(samples))
        self._hopes[knot] = hope
        # Nor do fewer rows ever cost more.
        self.hopes = {}
        lowest = math.inf
        self._knots = sorted(self._hopes)
        for each in reversed(self._knots):
            lowest = self.hopes[each] = min(lowest, self._hopes[each])

    def at(self, rows: int) -> float:
        """Return the cost between measured row counts, or a hopeful guess beyond them."""
        knots = self._knots
        if not knots:
            return math.inf
        place = bisect_left(knots, rows)
        if place == len(knots):
            last = knots[-1]
            return self.hopes[last] * (1 + _UP * (rows - 1)) / (1 + _UP * (last - 1))
        above = knots[place]
        if above == rows:
            return self.hopes[rows]
        if place == 0:
            return self.hopes[above] * (1 + _DOWN * (rows - 1)) / (1 + _DOWN * (above - 1))
        below = knots[place - 1]
        share = (rows - below) / (above - below)
        return self.hopes[below] + share * (self.hopes[above] - self.hopes[below])


def _nearest(rows: int) -> int:
    above = min(bisect_left(_KNOTS, rows), len(_KNOTS) - 1)
    below = max(0, above - 1)
    return min(_KNOTS[below], _KNOTS[above], key=lambda knot: abs(knot - rows))
