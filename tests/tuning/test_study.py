"""The study of all objectives: what it has is not run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marslm.errors import InputError
from marslm.tuning import study as module
from marslm.tuning.study import VARIANTS, study


def test_a_variant_is_trained_from_stage_one_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._STAGE_1, "steps", 2)
    monkeypatch.setitem(module._STAGE_2, "steps", 2)
    monkeypatch.setitem(module._COMMON, "batch_size", 2)
    monkeypatch.setattr(module, "_TRAINING", 20)
    monkeypatch.setattr(module, "_HELD_OUT", 2)
    names = ["ar", "own-position-b4", "mask-only-b4"]
    rows = study(tmp_path, seeds=[1], names=names)
    assert [row["variant"] for row in rows] == names
    assert rows[0]["tokens_per_forward"] is None
    assert all(row["tokens_per_forward"] >= 1 for row in rows[1:])  # type: ignore[operator]
    kept = tmp_path / "seed-1" / "ar" / "row.json"
    kept.write_text(json.dumps({**rows[0], "accuracy_one_token": 0.25}))
    assert study(tmp_path, seeds=[1], names=["ar"])[0]["accuracy_one_token"] == 0.25


def test_the_papers_comparisons_are_all_there() -> None:
    names = {variant.name for variant in VARIANTS}
    assert {f"mars-b{b}{tail}" for b in (4, 8, 16) for tail in ("", "-no-ar-loss")} < names
    assert {"ar", "previous-mask-b4", "block-diffusion-b4", "mask-only-b4-kl"} < names


def test_unknown_variants_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown variant 'magic'"):
        study(tmp_path, seeds=[0], names=["magic"])
    assert list(tmp_path.iterdir()) == []
