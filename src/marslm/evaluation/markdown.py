"""The rows of an evaluation as a page: our scores, what they cost, and the paper's beside them.

Knows nothing about how the rows came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marslm.evaluation import paper

Rows = Sequence[Mapping[str, Any]]


def page_of(rows: Rows, title: str) -> str:
    """Return the page; scores are in percent, with their 95 % bootstrap intervals."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    sizes = {row["task"]: row["n"] for row in rows}
    modes: dict[str, dict[str, Any]] = {}
    for row in rows:
        modes.setdefault(_mode(row), {})[row["task"]] = row
    parts = [
        f"# {title}",
        f"Items: {', '.join(f'{task} {size}' for task, size in sizes.items())}.",
        "## Scores",
        _table(["", *tasks, "mean"], [_scores(mode, of, tasks) for mode, of in modes.items()]),
        "## Against one token a forward, item by item",
        _table(
            ["", *tasks],
            [
                [mode, *(_difference(of[task]) for task in tasks)]
                for mode, of in modes.items()
                if "difference" in of[tasks[0]]
            ],
        ),
        "Difference in points, its interval, and the share of answers that are the same.",
        "## Tokens per forward, and answers cut by the length cap",
        _table(
            ["", *tasks, "all", "seconds"], [_costs(mode, of, tasks) for mode, of in modes.items()]
        ),
        "## The paper's (other models, trained on 2 M samples)",
        _table(["", *paper.COLUMNS, "mean", "tokens per forward"], [_paper(r) for r in paper.ROWS]),
        *_notes(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _mode(row: Mapping[str, Any]) -> str:
    tau = "" if row["tau"] is None else f", tau {row['tau']}"
    block = "" if row["block"] is None else f", B={row['block']}"
    return f"{row['strategy']}{tau}{block}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _scores(mode: str, of: Mapping[str, Any], tasks: Sequence[str]) -> list[str]:
    cells = [_with_interval(of[task], "score", "") for task in tasks]
    mean = sum(of[task]["score"] for task in tasks) / len(tasks)
    return [mode, *cells, f"{100 * mean:.1f}"]


def _difference(row: Mapping[str, Any]) -> str:
    return f"{_with_interval(row, 'difference', '+')}, {row['identical']:.0%} same"


def _with_interval(row: Mapping[str, Any], name: str, sign: str) -> str:
    mean, low, high = (100 * row[key] for key in (name, f"{name}_low", f"{name}_high"))
    return f"{mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def _costs(mode: str, of: Mapping[str, Any], tasks: Sequence[str]) -> list[str]:
    cells = [
        f"{of[task]['tokens_per_forward']:.2f}, {of[task]['truncated']:.0%} cut" for task in tasks
    ]
    tokens, forwards, seconds = (
        sum(of[task][key] for task in tasks) for key in ("tokens", "forwards", "seconds")
    )
    return [mode, *cells, f"{tokens / max(1, forwards):.2f}", f"{seconds:.0f}"]


def _paper(row: paper.PaperRow) -> list[str]:
    scores = [f"{score:.1f}" for score in row.scores] if row.scores else [""] * len(paper.COLUMNS)
    return [row.name, *scores, f"{row.average:.1f}", f"{row.tokens_per_forward:.2f}"]


def _notes(rows: Rows) -> list[str]:
    notes = {row["task"]: row["notes"] for row in rows if row["notes"]}
    return ["\n".join(f"* {task}: {note}." for task, note in notes.items())] if notes else []
