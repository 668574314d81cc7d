"""Score pictures: a panel for each task, a curve for each strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from marslm.plots.scores import Cost, plot_scores


def row(task: str, strategy: str, tau: float | None, cost: float) -> dict[str, object]:
    return {
        "task": task,
        "strategy": strategy,
        "tau": tau,
        "block": None,
        "score": 0.5,
        "score_low": 0.4,
        "score_high": 0.7,
        "tokens_per_forward": cost,
        "seconds": 10 / cost,
    }


@pytest.mark.parametrize("cost", ["tokens_per_forward", "seconds"])
def test_a_panel_for_each_task_and_taus_by_name(tmp_path: Path, cost: Cost) -> None:
    rows = [
        row(task, *mode)
        for task in ("gsm8k", "bbh", "ifeval", "gpqa")
        for mode in (("ar", None, 1.0), ("mars", 0.95, 1.2), ("mars", 0.65, 1.9))
    ]
    path = tmp_path / "new" / "scores.svg"
    plot_scores(rows, cost, path)
    text = path.read_text()
    for name in ("gsm8k", "bbh", "ifeval", "gpqa", "mars", "0.95", "0.65"):
        assert f"<!-- {name} -->" in text or f"<!--  {name} -->" in text
    assert text.count("<!-- score -->") == 4
