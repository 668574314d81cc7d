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

_NEAR = 4
"""Hope goes to so many rows more than any measured step, or twice as many; a larger one is taken
to be bound by arithmetic until one in between is measured."""

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
        if masks:
            cost = (with_masks if with_masks.measured else without).at(rows)
        elif not without.measured:
            cost = _WITHOUT_MASKS * with_masks.at(rows)
        elif with_masks.measured_up_to(rows):
            # One stray sample cannot make rows without masks look dearer than rows with them.
            cost = min(without.at(rows), with_masks.at(rows))
        else:
            cost = without.at(rows)
        if not (with_masks.measured or without.measured):
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
        self._knots: list[int] = []
        self._costs: dict[int, float] = {}  # at the knots; empty when samples have come since

    @property
    def measured(self) -> bool:
        """Whether there is a sample."""
        return bool(self._samples)

    def measured_up_to(self, rows: int) -> bool:
        """Whether there is a sample of so many rows or fewer."""
        return any(knot <= rows for knot in self._samples)

    def add(self, knot: int, seconds: float) -> None:
        """Take in a sample."""
        samples = self._samples.setdefault(knot, deque(maxlen=_REMEMBERED))
        samples.append(seconds)
        self.medians[knot] = median(samples)
        self._costs = {}

    def _settle(self) -> None:
        """Read the costs at the knots off the samples, so that no fewer rows cost more.

        Where they seem to, what was measured more often is believed; if none was, the cheaper.
        """
        self._knots = sorted(self._samples)
        counts = [len(self._samples[knot]) for knot in self._knots]
        # The first steps of a new shape are often slow, and what looks slow is not tried again.
        hopes = [
            self.medians[knot] * (1 - _HOPE / count**2)
            for knot, count in zip(self._knots, counts, strict=True)
        ]
        lowest = math.inf
        for place in reversed(range(len(hopes))):
            surer = [
                hope
                for hope, count in zip(hopes[:place], counts, strict=False)
                if count > counts[place]
            ]
            lowest = min(lowest, max([hopes[place], *surer]))
            self._costs[self._knots[place]] = lowest

    def at(self, rows: int) -> float:
        """Return the cost between measured row counts, or a hopeful guess beyond them."""
        if not self._samples:
            return math.inf
        if not self._costs:
            self._settle()
        knots, costs = self._knots, self._costs
        place = bisect_left(knots, rows)
        if place == len(knots):
            last = knots[-1]
            if rows > max(last + _NEAR, 2 * last):
                return costs[last] * rows / last
            return costs[last] * (1 + _UP * (rows - 1)) / (1 + _UP * (last - 1))
        above = knots[place]
        if above == rows:
            return costs[rows]
        if place == 0:
            return costs[above] * (1 + _DOWN * (rows - 1)) / (1 + _DOWN * (above - 1))
        below = knots[place - 1]
        share = (rows - below) / (above - below)
        return costs[below] + share * (costs[above] - costs[below])


def _nearest(rows: int) -> int:
    above = min(bisect_left(_KNOTS, rows), len(_KNOTS) - 1)
    below = max(0, above - 1)
    return min(_KNOTS[below], _KNOTS[above], key=lambda knot: abs(knot - rows))
