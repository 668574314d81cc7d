"""A training run as a picture: losses, accuracy by masks seen, tokens per forward at the end.

Knows nothing about models or how the run went about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_POINTS = 200
"""Points of a curve: more are averaged, so that a long run does not draw noise."""


def plot_training(
    steps: Sequence[Mapping[str, Any]],
    held_out: Sequence[Mapping[str, Any]],
    path: Path,
    title: str,
) -> None:
    """Draw a run and save the picture; the format follows the path's ending.

    steps: rows with step, loss, mask_loss, ar_loss, accuracy (a list, None where not measured).
    held_out: rows with strategy, tau, tokens and forwards, empty if nothing was held out.
    """
    figure = Figure(figsize=(12, 4), layout="constrained")
    figure.suptitle(title)
    losses, accuracy, speed = figure.subplots(1, 3)
    for name in ("loss", "mask_loss", "ar_loss"):
        _curve(losses, steps, [row.get(name) for row in steps], name.replace("_", " "))
    losses.set(xlabel="step", ylabel="loss")
    losses.legend()
    for seen in range(max((len(row["accuracy"]) for row in steps), default=0)):
        right = [_at(row["accuracy"], seen) for row in steps]
        _curve(accuracy, steps, right, f"{seen} masks seen" if seen else "clean rows")
    accuracy.set(xlabel="step", ylabel="share right", ylim=(0, 1))
    if accuracy.lines:
        accuracy.legend()
    names = [
        f"{row['strategy']} {row['tau']}" if row["tau"] else row["strategy"] for row in held_out
    ]
    speed.bar(names, [row["tokens"] / max(1, row["forwards"]) for row in held_out])
    speed.set(ylabel="tokens per forward", title="" if held_out else "nothing held out")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _at(values: Sequence[float | None], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _curve(
    axes: Axes, steps: Sequence[Mapping[str, Any]], values: Sequence[float | None], label: str
) -> None:
    """Draw the measured values over their steps, means of neighbours if there are many."""
    points = [(row["step"], v) for row, v in zip(steps, values, strict=True) if v is not None]
    if not any(value for _, value in points):
        return
    size = -(-len(points) // _POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    means = [[sum(part) / len(group) for part in zip(*group, strict=True)] for group in groups]
    axes.plot([step for step, _ in means], [value for _, value in means], label=label)
