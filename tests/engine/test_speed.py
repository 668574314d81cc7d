"""The knob refuses what the engine could not obey."""

from __future__ import annotations

import pytest

from marslm.engine.speed import SpeedKnob
from marslm.errors import InputError


def test_the_default_is_exact() -> None:
    assert SpeedKnob().strategy == "lossless"


@pytest.mark.parametrize("tau", [0, 1.2, -1, float("nan")])
def test_a_tau_out_of_range_leaves_the_old_one(tau: float) -> None:
    knob = SpeedKnob(tau=0.7)
    with pytest.raises(InputError, match="above 0 and at most 1"):
        knob.tau = tau
    assert knob.tau == 0.7


def test_an_unknown_strategy_leaves_the_old_one() -> None:
    knob = SpeedKnob(strategy="mars")
    with pytest.raises(InputError, match="unknown strategy 'fast'"):
        knob.strategy = "fast"
    assert knob.strategy == "mars"


@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"strategy": "fast"}])
def test_a_knob_is_checked_when_it_is_made(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SpeedKnob(**settings)
