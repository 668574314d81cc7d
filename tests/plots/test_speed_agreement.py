"""The figure of speed against agreement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marslm.errors import InputError
from marslm.plots.speed_agreement import plot_speed_agreement


def write_rows(path: Path, *rows: tuple[str, float, float, float | None]) -> Path:
    names = ("strategy", "tokens_per_second", "identical_to_ar", "tau")
    path.write_text(json.dumps({"rows": [dict(zip(names, row, strict=True)) for row in rows]}))
    return path


def test_reports_become_one_picture(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "a.json", ("ar", 20.0, 1.0, None), ("mars", 30.0, 0.5, 0.7))
    two = write_rows(tmp_path / "b.json", ("ar", 10.0, 1.0, None), ("mars", 12.0, 0.9, 0.95))
    plot_speed_agreement([one, two], tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_kinds_without_a_speed_of_their_own_do_not_matter(tmp_path: Path) -> None:
    """In a batch prompts of several kinds share their steps."""
    report = write_rows(tmp_path / "a.json", ("ar", 20.0, 1.0, None), ("mars", 30.0, 0.5, 0.7))
    rows = json.loads(report.read_text())["rows"]
    kinds = [{**row, "kind": "qa", "tokens_per_second": None} for row in rows]
    report.write_text(json.dumps({"rows": [*rows, *kinds]}))
    plot_speed_agreement([report], tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").exists()


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    lonely = write_rows(tmp_path / "a.json", ("mars", 30.0, 0.5, 0.7))
    with pytest.raises(InputError, match="no row of ar"):
        plot_speed_agreement([lonely], tmp_path / "speed.svg")
    for text in ("{}", "no json", '{"rows": [{"strategy": "ar"}]}'):
        lonely.write_text(text)
        with pytest.raises(InputError, match="is not a report of `marslm bench decode"):
            plot_speed_agreement([lonely], tmp_path / "speed.svg")
    with pytest.raises(InputError, match=r"missing\.json is not a report"):
        plot_speed_agreement([tmp_path / "missing.json"], tmp_path / "speed.svg")
    with pytest.raises(InputError, match=r"ends in \.svg"):
        plot_speed_agreement([lonely], tmp_path / "speed.png")
