"""`marslm plot`: a finished or running training run as a picture.

Knows nothing about how it is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
[b]Examples[/b]

marslm plot runs/mine

marslm plot runs/mine --output curves.svg
"""


def plot(
    run: Annotated[Path, typer.Argument(help="Folder that `marslm tune` wrote.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Picture; default: training.png in RUN.")
    ] = None,
) -> None:
    """Draw loss, accuracy by masks seen and tokens per forward of a training run."""
    from marslm.cli.render import console
    from marslm.plots.training import plot_training
    from marslm.tuning.log import read_log

    steps, held_out = read_log(run)
    path = output or run / "training.png"
    plot_training(steps, held_out, path, title=str(run))
    console.print(f"{len(steps)} steps drawn to {path}")
