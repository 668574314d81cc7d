"""How often candidates of a given confidence are right.

Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure


def plot_reliability(
    curves: Mapping[str, Sequence[tuple[float, float, int]]], path: Path, title: str
) -> None:
    """Draw one curve a name and save the picture; the format follows the path's ending.

    curves: points (mean confidence, share right, number of candidates); a point's area grows with
    its number.
    """
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="perfect")
    most = max((count for points in curves.values() for *_, count in points), default=1)
    for name, points in curves.items():
        confidence, right, counts = zip(*points, strict=True) if points else ((), (), ())
        (line,) = axes.plot(confidence, right, label=name)
        sizes = [10 + 90 * count / most for count in counts]
        axes.scatter(confidence, right, s=sizes, color=line.get_color())
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share right", title=title)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
