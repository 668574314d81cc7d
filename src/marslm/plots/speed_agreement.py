"""Speed against agreement: what each strategy gains over one token a step, and what it gives up.

Knows nothing about decoding; reads rows of `marslm bench decode` reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marslm.errors import InputError
from marslm.plots.svg import new_figure, save_svg
from marslm.report import read_rows

_SIZE_INCHES = (6.4, 4.0)


def plot_speed_agreement(reports: Sequence[Path], output: Path) -> None:
    """Draw the overall rows of `reports`; rows of one strategy at several tau are joined.

    Across: the share of answers equal to one-token decoding's. Up: tokens a second, over those of
    `ar` in the same report. Raises InputError as `new_figure` does, for a file that is no such
    report, and for a report without `ar`.
    """
    figure = new_figure(*_SIZE_INCHES, output)
    axes = figure.add_subplot()
    for name, points in _points(reports).items():
        points.sort()
        axes.plot([p[0] for p in points], [p[1] for p in points], "o-", label=name)
        for identical, speed, tau in points:
            if tau is not None:
                axes.annotate(f" {tau}", (identical, speed))
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("share of answers equal to ar's")
    axes.set_ylabel("tokens a second, over ar's")
    axes.legend()
    save_svg(figure, output)


Point = tuple[float, float, float | None]
"""Share of equal answers, speed over `ar`'s, tau."""


def _points(reports: Sequence[Path]) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for report in reports:
        rows = _rows(report)
        plain = [row["tokens_per_second"] for row in rows if row["strategy"] == "ar"]
        if not plain:
            raise InputError(f"{report} has no row of ar to compare with: add it to --strategies")
        for row in rows:
            point = (row["identical_to_ar"], row["tokens_per_second"] / plain[0], row["tau"])
            points.setdefault(row["strategy"], []).append(point)
    return points


def _rows(report: Path) -> list[dict[str, Any]]:
    """Return the overall rows; those of a kind may have no speed of their own, in a batch."""
    rows = [row for row in read_rows(report) if "kind" not in row]
    if not all(row.get("tokens_per_second") and "identical_to_ar" in row for row in rows):
        raise InputError(f"{report} is not a report of `marslm bench decode --json FILE`")
    return rows
