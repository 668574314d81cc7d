"""Settings that cannot be run are refused in one line that names the fix."""

from __future__ import annotations

import pytest

from marslm.errors import InputError
from marslm.train.config import TuneConfig, check_meaningful


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "as one of steps, minutes and epochs"),
        ({"steps": 5, "minutes": 5.0}, "as one of steps, minutes and epochs"),
        ({"steps": 0}, "steps is 0: give more than 0"),
        ({"minutes": -1.0}, "minutes is -1.0: give more than 0"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"steps": 5, "block_size": 1}, "block_size is 1: give at least 2"),
        ({"steps": 5, "ar_weight": -0.1}, "ar_weight is -0.1"),
        ({"steps": 5, "anchors": 0}, "anchors is 0"),
        ({"steps": 5, "kl_weight": -1}, "kl_weight is -1"),
        ({"steps": 5, "rank": 0}, "rank is 0"),
        ({"steps": 5, "learning_rate": 0.0}, r"learning_rate is 0\.0: give more than 0"),
        ({"steps": 5, "checkpoint_minutes": 0.0}, "checkpoint_minutes is 0.0"),
        ({"steps": 5, "max_length": 4}, "max_length is 4"),
        ({"steps": 5, "batch_size": 0}, "batch_size is 0"),
        ({"steps": 5, "batch_size": 6, "accumulation": 4}, "6 is not a multiple of accumulation 4"),
    ],
)
def test_settings_that_cannot_be_run(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        TuneConfig.for_mode("full", **settings)
    assert "\n" not in str(caught.value)


def test_an_unknown_mode() -> None:
    with pytest.raises(InputError, match="choose full, lora, mask-only, medusa"):
        TuneConfig.for_mode("qlora", steps=5)  # type: ignore[arg-type]


def test_presets_suit_the_mode_and_yield_to_what_is_given() -> None:
    mask_only = TuneConfig.for_mode("mask-only", steps=5, learning_rate=None)
    assert (mask_only.ar_weight, mask_only.anchors, mask_only.learning_rate) == (0.0, 48, 8e-4)
    assert TuneConfig.for_mode("mask-only", steps=5, learning_rate=1e-3).learning_rate == 1e-3
    full = TuneConfig.for_mode("full", steps=5)
    # The paper's setting.
    assert (full.ar_weight, full.anchors, full.learning_rate, full.block_size) == (
        1.0,
        None,
        5e-6,
        4,
    )


@pytest.mark.parametrize(
    ("mode", "setting"),
    [("full", "rank"), ("full", "kl_weight"), ("lora", "kl_weight"), ("mask-only", "ar_weight")],
)
def test_a_setting_that_a_mode_does_not_read_is_refused(mode: str, setting: str) -> None:
    with pytest.raises(InputError, match=f"{setting} has no meaning in mode {mode}"):
        check_meaningful(mode, **{setting: 1})
    check_meaningful(mode, **{setting: None})
