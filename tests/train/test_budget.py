"""How far a run has come, by steps or by a clock that the test turns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import TrainerControl

from marslm.train.budget import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("marslm.train.budget.time", SimpleNamespace(monotonic=clock))
    return clock


def test_steps_use_up_a_budget_of_steps() -> None:
    budget = Budget(steps=40, minutes=None)
    assert budget.max_steps == 40
    assert [budget.fraction(step) for step in (0, 10, 40, 50)] == [0, 0.25, 1, 1]


def test_minutes_use_up_a_budget_of_minutes(clock: Clock) -> None:
    budget = Budget(steps=None, minutes=2)
    assert budget.max_steps > 100_000
    assert budget.fraction(5) == 0
    budget.on_train_begin(None, None, TrainerControl())
    clock.now += 30
    assert budget.elapsed == 30
    assert budget.fraction(5) == 0.25
    assert budget.seconds_left(5) == pytest.approx(90)
    clock.now += 1000
    assert budget.fraction(5) == 1


def test_the_clock_stands_still_before_training(clock: Clock) -> None:
    budget = Budget(steps=None, minutes=2)
    clock.now += 50
    assert budget.elapsed == 0
    assert budget.seconds_left(0) is None


def test_time_used_before_a_resume_counts(clock: Clock) -> None:
    budget = Budget(steps=None, minutes=2)
    budget.on_train_begin(None, None, TrainerControl())
    clock.now += 45
    resumed = Budget(steps=None, minutes=2)
    resumed.continue_from(budget.elapsed)
    clock.now += 500  # between the two parts of the run
    assert resumed.elapsed == 45
    resumed.on_train_begin(None, None, TrainerControl())
    clock.now += 15
    assert resumed.elapsed == 60
    assert resumed.fraction(1) == 0.5


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    budget = Budget(steps=1000, minutes=None)
    rate = [budget.learning_rate_factor(step, warmup=0.1) for step in range(1001)]
    assert 0 < rate[0] < 0.02
    assert rate[50] == pytest.approx(0.5)
    assert max(rate) == rate[100] == 1
    assert rate[550] == pytest.approx(0.5)
    assert rate[1000] == pytest.approx(0, abs=1e-12)
    assert rate[:101] == sorted(rate[:101])
    assert rate[100:] == sorted(rate[100:], reverse=True)


def test_no_warm_up_starts_at_the_peak() -> None:
    assert Budget(steps=10, minutes=None).learning_rate_factor(0, warmup=0) == 1


def test_minutes_decay_as_steps_do(clock: Clock) -> None:
    by_time, by_steps = Budget(None, 10), Budget(100, None)
    by_time.on_train_begin(None, None, TrainerControl())
    for step in (1, 20, 99):
        clock.now = 1000 + 6 * step
        expected = by_steps.learning_rate_factor(step, 0.03)
        assert by_time.learning_rate_factor(step, 0.03) == pytest.approx(expected)


@pytest.mark.parametrize(("used", "stops"), [(119, False), (120, True)])
def test_the_run_stops_and_saves_when_time_is_up(clock: Clock, used: int, stops: bool) -> None:
    budget, control = Budget(None, 2), TrainerControl()
    budget.on_train_begin(None, None, TrainerControl())
    clock.now += used

    class State:
        global_step = 17

    budget.on_step_end(None, State(), control)  # type: ignore[arg-type]
    assert control.should_training_stop is stops
    assert control.should_save is stops
