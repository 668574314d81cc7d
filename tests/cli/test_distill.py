"""`marslm distill` as a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_prompts_of_a_file_are_answered_and_counted(cli: Cli, tmp_path: Path) -> None:
    asked, output, report = (tmp_path / name for name in ("a.jsonl", "o/rows.jsonl", "r.json"))
    asked.write_text('{"prompt": "Name a cat."}\n{"prompt": "Name a dog."}\n')
    arguments = ("distill", "--model", "tiny", "--prompts", asked, "-n", 8, "--max-length", 128)
    first = cli(*arguments, "--output", output, "--json", report)
    assert first.code == 0, first.err
    row = json.loads(report.read_text())["rows"][0]
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert row["rows"] == len(rows)
    assert row["tokens"] == sum(answer["tokens"] for answer in rows)
    assert {answer["model"] for answer in rows} <= {"tiny"}
    assert f"{row['rows']} rows, {row['tokens']} tokens" in first.out
    again = cli(*arguments, "--output", output)
    assert again.code == 0, again.err
    assert len(output.read_text().splitlines()) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to answer"),
        (("--prompts", "missing.jsonl"), "no such file"),
        (("--self-prompts", "2", "--endpoint", "http://127.0.0.1:9/v1"), "does not answer"),
        (
            ("--self-prompts", "2", "--endpoint", "http://127.0.0.1:9/v1", "--quantize", "int8"),
            "--quantize is for this process",
        ),
    ],
)
def test_bad_input_is_one_line(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("distill", "--model", "tiny", "--output", tmp_path / "o.jsonl", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "o.jsonl").exists()
