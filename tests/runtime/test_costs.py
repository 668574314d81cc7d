"""What a step costs: measured, read between measurements, and not spoilt by strays or by drift."""

from __future__ import annotations

import random

import pytest

from marslm.runtime.costs import StepCosts


def cost(rows: int) -> float:
    return 30 + 2 * rows


def measured(*row_counts: int, times: int = 15) -> StepCosts:
    costs = StepCosts()
    for _ in range(times):
        for rows in row_counts:
            costs.observe(rows, True, cost(rows))
    return costs


def test_costs_are_measured_and_read_between() -> None:
    costs = measured(1, 4, 8, 32)
    for rows in (1, 3, 6, 8, 20, 32):
        assert costs.seconds(rows, True) == pytest.approx(cost(rows), rel=0.03)


def test_what_is_not_measured_is_hoped_to_be_cheap() -> None:
    costs = measured(8)
    assert cost(8) < costs.seconds(16, True) < cost(16)
    assert costs.seconds(2, True) < cost(2)
    assert costs.seconds(8, False) < costs.seconds(8, True)
    assert StepCosts().seconds(9, True) > StepCosts().seconds(1, False) > 0


def test_stray_steps_do_not_count() -> None:
    generator, costs = random.Random(0), StepCosts()
    for _ in range(100):
        for rows in (1, 5, 9):
            stray = 20 if generator.random() < 0.1 else 1
            costs.observe(rows, True, stray * cost(rows))
    ratio = costs.seconds(9, True) / costs.seconds(1, True)
    assert ratio == pytest.approx(cost(9) / cost(1), rel=0.05)


def test_a_slow_first_step_is_outweighed_by_larger_ones() -> None:
    """Fewer rows cost no more, nor do rows without masks."""
    costs = StepCosts()
    costs.observe(2, False, 500.0)
    costs.observe(4, False, 40.0)
    assert costs.seconds(2, False) <= 40
    costs.observe(1, True, 30.0)
    assert costs.seconds(1, False) <= 30


def test_hope_for_more_rows_does_not_lower_what_is_well_known() -> None:
    """Windows would look dearer than they are, next to a step that looks cheaper than it is."""
    costs = StepCosts()
    for _ in range(15):
        costs.observe(1, False, cost(1))
    costs.observe(3, False, cost(3))
    costs.observe(5, True, cost(5))
    assert costs.seconds(1, False) == pytest.approx(cost(1), rel=0.02)
    assert costs.seconds(3, False) >= costs.seconds(1, False)


def test_hope_goes_on_from_step_to_step() -> None:
    """More than twice the rows look proportionally dear until a step in between is measured."""
    costs = measured(16)
    assert costs.seconds(32, True) < 1.4 * cost(16)
    assert costs.seconds(40, True) == pytest.approx(2.5 * cost(16), rel=0.02)
    costs.observe(24, True, cost(24))
    assert costs.seconds(40, True) < 1.4 * cost(24)
    assert measured(1).seconds(5, True) < 1.25 * cost(1)


def test_when_the_machine_slows_down_ratios_stay() -> None:
    """Only one row count goes on being measured, three times as slow."""
    costs = measured(1, 8)
    before = costs.seconds(1, True) / costs.seconds(8, True)
    for _ in range(60):
        costs.observe(8, True, 3 * cost(8))
    assert costs.seconds(8, True) == pytest.approx(3 * cost(8), rel=0.05)
    assert costs.seconds(1, True) / costs.seconds(8, True) == pytest.approx(before, rel=0.25)
