"""Comparing runs: shared items, flips, a page with the paper's figures."""

from __future__ import annotations

import pytest

from marslm.errors import InputError
from marslm.evaluation import paper
from marslm.evaluation.benchmarks import BENCHMARKS, SUITES
from marslm.evaluation.compare import compare
from marslm.evaluation.items import Item
from marslm.evaluation.markdown import page_of
from marslm.evaluation.modes import Mode
from marslm.evaluation.rows import rows_of


def item(number: int, score: float, answer: str = "same", forwards: int = 10) -> Item:
    return Item(
        f"task:{number}", "prompt", answer, answer, "8", score, 10, forwards, 1.0, "stop", 0
    )


def test_only_shared_items_count_and_flips_are_those_that_score_differently() -> None:
    left = {"gsm8k": [item(n, n % 2) for n in range(6)], "bbh": [item(0, 1)]}
    right = {
        "gsm8k": [item(n, float(n in (1, 2)), "other") for n in range(1, 8)],
        "ifeval": [item(0, 1)],
    }
    rows, flips = compare(left, right)
    assert [row["task"] for row in rows] == ["gsm8k"]
    (row,) = rows
    assert (row["n"], row["gained"], row["lost"], row["identical"]) == (5, 1, 2, 0)
    assert (row["left"], row["right"]) == (3 / 5, 2 / 5)
    assert row["difference"] == pytest.approx(-1 / 5)
    assert [flip.left.id for flip in flips] == ["task:2", "task:3", "task:5"]
    with pytest.raises(InputError, match="the two share no item"):
        compare({"bbh": [item(0, 1)]}, {"bbh": [item(1, 1)]})


def results() -> tuple[list[Mode], dict[tuple[Mode, str], list[Item]]]:
    modes = [Mode("ar"), Mode("mars", 0.8)]
    scores = {modes[0]: [1, 1, 0, 0], modes[1]: [1, 0, 0, 0]}
    return modes, {
        (mode, task): [
            item(n, score, str(score), 10 if mode.tau is None else 5)
            for n, score in enumerate(scores[mode])
        ]
        for mode in modes
        for task in ("gsm8k", "gpqa")
    }


def test_rows_pair_items_with_one_token_decoding() -> None:
    modes, items = results()
    benchmarks = [BENCHMARKS["gsm8k"], BENCHMARKS["gpqa"]]
    rows = rows_of(modes, benchmarks, SUITES["local"], items)
    plain, mars = rows[:2]
    assert "difference" not in plain
    assert (mars["reference"], mars["difference"]) == ("ar", -0.25)
    assert (mars["gained"], mars["lost"], mars["identical"]) == (0, 1, 0.75)
    assert (mars["tokens_per_forward"], mars["truncated"]) == (2, 0)
    assert plain["notes"] is None
    assert rows[2]["notes"] == ("the diamond subset; choices shuffled once, with a fixed seed")


def test_the_page_has_our_scores_and_the_papers() -> None:
    modes, items = results()
    rows = rows_of(modes, [BENCHMARKS["gsm8k"], BENCHMARKS["gpqa"]], SUITES["local"], items)
    page = page_of(rows, "tiny")
    assert "| mars, tau 0.8 | 25.0 (0.0 to 75.0) | 25.0 (0.0 to 75.0) | 25.0 |" in page
    assert "| mars, tau 0.8 | -25.0 (-75.0 to +0.0), 75% same |" in page
    assert "| 0.5B MARS B=4, one token | 51.3 | 26.6 | 12.4 | 19.4 | 32.8 | 40.2 | 30.4 |" in page
    assert "* gpqa: the diamond subset" in page


def test_the_papers_averages_are_those_of_its_scores() -> None:
    for row in paper.ROWS:
        if row.scores is not None:
            assert len(row.scores) == len(paper.COLUMNS)
            assert sum(row.scores) / len(row.scores) == pytest.approx(row.average, abs=0.06)
