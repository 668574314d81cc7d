"""Intervals hold what they should, and pairing sharpens them."""

from __future__ import annotations

import numpy as np
import pytest

from marslm.evaluation.statistics import difference, estimate


def test_an_interval_is_as_wide_as_the_binomial_one() -> None:
    values = [1.0] * 30 + [0.0] * 70
    found = estimate(values)
    half = 1.96 * (0.3 * 0.7 / 100) ** 0.5
    assert found.mean == pytest.approx(0.3)
    assert found.low == pytest.approx(0.3 - half, abs=0.015)
    assert found.high == pytest.approx(0.3 + half, abs=0.015)
    assert found == estimate(values)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(1)
    samples = draw.random((200, 100)) < 0.4
    held = sum(
        found.low <= 0.4 <= found.high
        for found in (estimate(list(map(float, sample))) for sample in samples)
    )
    assert 0.88 <= held / 200 <= 0.99


def test_pairing_removes_what_both_share() -> None:
    others = [float(n % 3 == 0) for n in range(120)]
    values = [1.0, *others[1:60], 1.0, *others[61:]]
    gap = difference(values, others)
    assert gap.mean == pytest.approx(np.mean(values) - np.mean(others))
    assert gap.high - gap.low < 0.05
    assert difference(others, others) == estimate([0.0] * 120)
