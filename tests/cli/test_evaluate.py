"""`marslm eval`: figures for people and for programs; bad input is one line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marslm.evaluation.benchmarks import SUITES, Suite
from marslm.models.tiny import build_model, build_tokenizer

Cli = Callable[..., Any]

QUESTIONS = [{"question": f"{n} and {n}?", "answer": f"#### {2 * n}"} for n in range(4)]


@pytest.fixture
def evaluate(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `marslm eval` on four questions, with short answers."""
    monkeypatch.setitem(SUITES, "local", Suite("local", 12, local=True))
    text = "".join(json.dumps(row) + "\n" for row in QUESTIONS)
    (tmp_path / "gsm8k_test.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("MARSLM_DATA", str(tmp_path))
    return lambda *options: cli(
        *("eval", "-m", "tiny", "--tasks", "gsm8k", "--output", tmp_path / "out"), *options
    )


def test_rows_for_programs(evaluate: Cli, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--limit", 2, "--strategies", "ar,mars", "--tau", 0.8, "--json", report]
    result = evaluate(*options)
    assert result.code == 0, result.err
    rows = json.loads(report.read_text())["rows"]
    assert [(row["task"], row["strategy"], row["tau"], row["n"]) for row in rows] == [
        ("gsm8k", "ar", None, 2),
        ("gsm8k", "mars", 0.8, 2),
    ]
    needed = {"score", "tokens", "forwards", "tokens_per_forward", "truncated", "seconds"}
    assert all(needed <= set(row) for row in rows)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rows"] == rows
    assert "gsm8k" in result.out
    assert "tok/fwd" in result.out


def test_a_sweep_leaves_a_page_and_plots_and_runs_compare(
    evaluate: Cli, cli: Cli, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    options = ["--limit", 2, "--strategies", "ar,mars", "--taus", "0.9,0.5", "--blocks", "2,4"]
    arguments = ["eval", "sweep", "-m", "tiny", "--tasks", "gsm8k", "--output", output]
    result = cli(*arguments, *options)
    assert result.code == 0, result.err
    modes = {path.name for path in output.iterdir() if path.is_dir()}
    assert modes == {"ar", *(f"mars-{tau}-B{block}" for tau in (0.9, 0.5) for block in (2, 4))}
    assert "| mars, tau 0.5, B=2 |" in (output / "report.md").read_text()
    for name in ("score-by-speed.svg", "score-by-time.svg"):
        assert "gsm8k" in (output / name).read_text()
    items = output / "mars-0.5-B4" / "gsm8k.jsonl"
    rows = [json.loads(line) for line in items.read_text().splitlines()]
    rows[0] |= {"score": 1.0, "answer": "[bold] it is 6", "extracted": "6"}
    items.write_text("".join(json.dumps(row) + "\n" for row in rows))
    compared = cli("eval", "compare", output / "ar", output / "mars-0.5-B4")
    assert compared.code == 0, compared.err
    assert "[bold] it is 6" in compared.out
    assert rows[0]["id"] in compared.out
    refused(cli("eval", "compare", output / "ar", tmp_path), "holds no results")
    refused(cli(*arguments, "--blocks", "2,x"), "--blocks 2,x: give whole numbers, as 4,8")


def refused(result: Any, said: str) -> None:
    assert result.code == 2
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    assert said in lines[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tasks", "chess"], "unknown task 'chess': choose from ifeval, bbh, mmlu_pro, gpqa"),
        (["--tasks", ""], "no task is named"),
        (["--suite", "moon"], "unknown suite 'moon': choose from paper, long, local"),
        (["--strategies", "warp"], "unknown strategy 'warp': choose from base, ar"),
        (["--tau", "0"], "tau is 0.0"),
        (["--limit", "0"], "limit is 0: give at least 1"),
        (["--tasks", "bbh"], "bbh: there is no"),
        (["--tasks", "humaneval"], "add --allow-code, or leave it out of --tasks"),
        (["--model", "/nowhere"], "cannot load model '/nowhere'"),
    ],
)
def test_bad_options_are_one_line(
    evaluate: Cli, tmp_path: Path, options: list[str], said: str
) -> None:
    refused(evaluate(*options), said)
    assert not (tmp_path / "out").exists()


def test_data_that_is_nowhere(evaluate: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARSLM_DATA")
    refused(evaluate(), "gsm8k: its folder is not known; set MARSLM_DATA to the folder that holds")


def test_a_model_without_a_chat_template(evaluate: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    build_model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    refused(evaluate("-m", folder), "has no chat template; use an instruction-tuned checkpoint")


@pytest.mark.parametrize("version", ["0.4.9", "0.5.0"])
def test_an_unsupported_harness(
    evaluate: Cli, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    refused(evaluate(), f"lm_eval {version} is not supported: pip install 'lm_eval[ifeval]>=0.4.13")
