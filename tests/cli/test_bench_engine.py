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


def test_batch_drains_a_queue_in_every_way(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "batch.json"
    prompts.write_text('{"prompt": "One and one?"}\n{"prompt": "Hm"}\n')
    small = ("bench", "batch", "-m", model_folder, "--data", prompts, "-n", 5)
    done = cli(*small, "--requests", 3, "--batches", 2, "--granularities", 4, "--json", report)
    assert done.code == 0, done.err
    rows = json.loads(report.read_text())["rows"]
    assert [row["way"] for row in rows] == ["ar", "ours", "no cache", "barrier"]
    assert {row["tokens"] for row in rows} == {15}
    assert cli(*small, "--requests", 0).code == 2
