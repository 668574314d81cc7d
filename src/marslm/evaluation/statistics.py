"""How sure a mean over items is: bootstrap intervals, also of paired differences.

Knows nothing about where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean, and the interval that holds the middle 95 % of its bootstrap resamples."""

    mean: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of `values`, at least one, and its percentile bootstrap interval.

    The draws are the same every time. Where all values are equal the interval has no width, which
    says nothing about other items.
    """
    data = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(data[draws].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(data.mean()), float(low), float(high))


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the mean of `values` - `others`, item by item: what both share does not blur it."""
    return estimate([a - b for a, b in zip(values, others, strict=True)])
