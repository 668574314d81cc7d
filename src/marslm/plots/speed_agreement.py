"""Speed against agreement: what each strategy gains over one token a step, and what it gives up.

Knows nothing about decoding; reads rows of `marslm bench decode` reports.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marslm import files
from marslm.errors import InputError

_SIZE_INCHES = (6.4, 4.0)


def plot_speed_agreement(reports: Sequence[Path], output: Path) -> None:
    """Draw the overall rows of `reports`; rows of one strategy at several tau are joined.

    Across: the share of answers equal to one-token decoding's. Up: tokens a second, over those of
    `ar` in the same report. Raises InputError without matplotlib, for a name that does not end in
    .svg, for a file that is no such report, and for a report without `ar`.
    """
    if output.suffix != ".svg":
        raise InputError(f"{output}: plots are written as SVG; give a name that ends in .svg")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'marslm[bench]'") from error
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
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
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    files.write_text(output, picture.getvalue())


Point = tuple[float, float, float | None]
"""Share of equal answers, speed over `ar`'s, tau."""


def _points(reports: Sequence[Path]) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for report in reports:
        rows = [row for row in _rows(report) if "kind" not in row]
        plain = [row["tokens_per_second"] for row in rows if row["strategy"] == "ar"]
        if not plain:
            raise InputError(f"{report} has no row of ar to compare with: add it to --strategies")
        for row in rows:
            point = (row["identical_to_ar"], row["tokens_per_second"] / plain[0], row["tau"])
            points.setdefault(row["strategy"], []).append(point)
    return points


def _rows(report: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["rows"]
        assert all(row["tokens_per_second"] and "identical_to_ar" in row for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(
            f"{report} is not a report of `marslm bench decode --json FILE`"
        ) from error
    return rows
