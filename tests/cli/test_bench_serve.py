"""The server's two measurements, each a short run against a real server process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def test_a_server_is_measured_under_load(cli: Cli, tmp_path: Path) -> None:
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "serve.json"
    prompts.write_text('{"prompt": "3 + 4 = ?"}\n{"prompt": "12 + 9 = ?"}\n')
    options = ["--strategies", "ar,lossless-chain", "--streams", "1,2", "--rate", "20"]
    options += ["--requests", "2", "--prompts", "2", "-n", "6"]
    result = cli(
        "bench", "serve", "-m", "tiny", "--data", str(prompts), *options, "--json", str(report)
    )
    assert result.code == 0, result.err
    rows = rows_of(report)
    assert [(row["strategy"], row["streams"], row["requests"]) for row in rows] == [
        ("ar", 1, 2),
        ("lossless-chain", 1, 2),
        ("ar", 2, 4),
        ("lossless-chain", 2, 4),
    ]
    assert all(row["tokens"] > 0 and row["ttft_p50"] > 0 for row in rows)
    assert all(row["tokens_per_forward"] == 1 for row in rows if row["strategy"] == "ar")


def test_a_load_policy_is_measured(cli: Cli, tmp_path: Path) -> None:
    """A target that nothing can meet: the window ends below the trained one."""
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "serve.json"
    prompts.write_text('{"prompt": "3 + 4 = ?"}\n')
    options = ["--strategies", "lossless-chain", "--streams", "2", "--rate", "5"]
    options += ["--requests", "15", "--prompts", "1", "-n", "24", "--slo", "tpot=0.001ms"]
    result = cli(
        "bench", "serve", "-m", "tiny", "--data", str(prompts), *options, "--json", str(report)
    )
    assert result.code == 0, result.err
    (row,) = rows_of(report)
    assert (row["strategy"], row["requests"], row["slo"]) == ("lossless-chain", 30, "tpot=0.001ms")
    assert row["moves"] >= 1
    assert row["block"] < 8


def test_a_load_policy_is_for_one_strategy(cli: Cli) -> None:
    result = cli("bench", "serve", "-m", "tiny", "--slo", "tpot=40ms")
    assert result.code != 0
    assert "name one strategy" in result.err


def test_a_short_soak_is_clean(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    options = ["--minutes", "0.05", "--requests", "24", "--prompts", "4", "-n", "12"]
    result = cli("bench", "soak", "-m", "tiny", *options, "--json", str(report))
    assert result.code == 0, result.err
    (row,) = rows_of(report)
    assert row["faults"] == 0
