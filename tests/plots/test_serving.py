"""The figure of a server under load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marslm.cli.bench import app
from marslm.errors import InputError
from marslm.plots.serving import plot_serving

COLUMNS = ("strategy", "streams", "tokens_per_second", "ttft_p50", "inter_token_p50")
ROWS = [
    dict(zip(COLUMNS, row, strict=True))
    for row in (
        ("ar", 1, 90.0, 0.02, 0.01),
        ("ar", 16, 300.0, 0.2, 0.05),
        ("lossless", 1, 99.0, 0.02, 0.009),
        ("lossless", 16, 298.0, 0.2, None),  # every answer had one token
    )
]


def test_a_load_report_becomes_a_picture_of_each_strategy(tmp_path: Path) -> None:
    report, picture = tmp_path / "serve.json", tmp_path / "serve.svg"
    report.write_text(json.dumps({"rows": ROWS}))
    CliRunner().invoke(app, ["plot", str(report), "-o", str(picture)], catch_exceptions=False)
    text = picture.read_text(encoding="utf-8")
    assert text.count("<!-- lossless -->") == 1  # the legend's; matplotlib names texts so
    assert "streams at most" in text


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.svg"):
        plot_serving(ROWS, tmp_path / "serve.png")
