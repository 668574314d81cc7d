"""A server under load: what it writes in all, and how long its clients wait.

Knows nothing about servers; reads rows of `marslm bench serve` reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marslm.plots.svg import new_figure, save_svg

_SIZE_INCHES = (9.6, 3.4)

_PANELS = (
    ("tokens_per_second", "tokens a second, all streams", 1.0),
    ("ttft_p50", "ms to the first token, median", 1e3),
    ("inter_token_p50", "ms between tokens, median", 1e3),
)


def plot_serving(rows: Sequence[dict[str, Any]], output: Path) -> None:
    """Draw each strategy over the number of streams; InputError as for `new_figure`."""
    figure = new_figure(*_SIZE_INCHES, output)
    panels = figure.subplots(1, len(_PANELS))
    strategies = list(dict.fromkeys(str(row["strategy"]) for row in rows))
    loads = sorted({row["streams"] for row in rows})
    for panel, (column, label, scale) in zip(panels, _PANELS, strict=True):
        for strategy in strategies:
            mine = [row for row in rows if row["strategy"] == strategy and row[column] is not None]
            streams = [row["streams"] for row in mine]
            panel.plot(streams, [row[column] * scale for row in mine], "o-", label=strategy)
        panel.set_xscale("log", base=2)
        panel.set_xticks(loads, [str(load) for load in loads])
        panel.set(xlabel="streams at most", ylabel=label, ylim=(0, None))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    save_svg(figure, output)
