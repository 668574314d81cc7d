"""A run's picture: drawn from its log, however little is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marslm.errors import InputError
from marslm.plots.training import plot_training
from marslm.tuning.log import read_log


def step(number: int, **facts: object) -> dict[str, object]:
    usual = {"loss": 3.0 / number, "mask_loss": 2.0 / number, "ar_loss": 1.0 / number}
    return {"event": "step", "step": number, "accuracy": [0.5, None, 0.1], **usual, **facts}


def test_a_run_becomes_a_png(tmp_path: Path) -> None:
    held_out = {"strategy": "mars", "tau": 0.9, "tokens": 30, "forwards": 20}
    lines = [*(step(n) for n in range(1, 500)), {"event": "held_out", "results": [held_out]}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps, results = read_log(tmp_path)
    assert [row["step"] for row in steps] == list(range(1, 500))
    assert results == [held_out]
    plot_training(steps, results, tmp_path / "deep" / "run.png", "a run")
    assert (tmp_path / "deep" / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_running_run_may_end_in_half_a_line(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(json.dumps(step(1)) + "\n" + '{"event": "st')
    steps, results = read_log(tmp_path)
    assert (len(steps), results) == (1, [])
    plot_training(steps, results, tmp_path / "run.svg", "a run")
    assert "<svg" in (tmp_path / "run.svg").read_text()


def test_there_must_be_steps(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no log\.jsonl: name a folder"):
        read_log(tmp_path)
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no steps yet"):
        read_log(tmp_path)
