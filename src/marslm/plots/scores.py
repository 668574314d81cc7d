"""Scores against what they cost: tokens per forward, or seconds, a panel for each task.

Knows nothing about how the figures came about; takes the rows of `marslm eval`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marslm.report import Row

Cost: TypeAlias = Literal["tokens_per_forward", "seconds"]

_COLUMNS = 3
_PANEL_INCHES = (3.4, 3.0)


def plot_scores(rows: Sequence[Row], cost: Cost, path: Path) -> None:
    """Draw the score of every row, with its interval, over `cost`; the format follows the ending.

    Rows of one strategy and B at several tau are joined, and each says its tau.
    """
    tasks = list(dict.fromkeys(str(row["task"]) for row in rows))
    across = min(_COLUMNS, len(tasks))
    down = math.ceil(len(tasks) / across)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flat
    for task, panel in zip(tasks, panels, strict=False):
        _draw(panel, [row for row in rows if row["task"] == task], cost)
        panel.set(title=task, xlabel=cost.replace("_", " "), ylabel="score")
    for panel in list(panels)[len(tasks) :]:
        panel.remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw(panel: Axes, rows: Sequence[Any], cost: Cost) -> None:
    curves: dict[str, list[Any]] = {}
    for row in rows:
        block = f" B={row['block']}" if row["block"] else ""
        curves.setdefault(f"{row['strategy']}{block}", []).append(row)
    for name, points in curves.items():
        points.sort(key=lambda row: float(row[cost]))
        costs = [row[cost] for row in points]
        scores = [row["score"] for row in points]
        below = [row["score"] - row["score_low"] for row in points]
        above = [row["score_high"] - row["score"] for row in points]
        panel.errorbar(costs, scores, [below, above], fmt="o-", capsize=2, label=name)
        for row in points:
            if row["tau"] is not None:
                panel.annotate(f" {row['tau']}", (row[cost], row["score"]))
