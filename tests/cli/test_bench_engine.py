"""`marslm bench limit` and `bench step` as commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marslm.bench import limit

Cli = Callable[..., Any]


def test_the_commands_report(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "_READ_BYTES", 1 << 12)
    report = tmp_path / "limit.json"
    assert cli("bench", "limit", "-m", "tiny", "--rounds", 1, "--json", report).code == 0
    rows = json.loads(report.read_text())["rows"]
    assert {row["quantize"] for row in rows} >= {"none"}
    assert cli("bench", "limit", "-m", "tiny", "--rounds", 0).code == 2
    report = tmp_path / "step.json"
    done = cli(
        *("bench", "step", "--profile", "-m", "tiny", "--batches", "1,3", "-n", 6),
        *("--strategies", "ar,mars", "--json", report),
    )
    assert done.code == 0, done.err
    for row in json.loads(report.read_text())["rows"]:
        parts = [row[f"{part}_share"] for part in ("propose", "lay_out", "forward", "accept")]
        assert all(share > 0 for share in parts)
        assert sum(parts) + row["bookkeeping_share"] == pytest.approx(1)
        assert row["steps"] >= 1
    assert cli("bench", "step", "-m", "tiny", "--batches", "0").code == 2
