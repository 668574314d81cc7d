"""Pictures as SVG text that is in its file whole or not at all.

Knows nothing about what is drawn.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from marslm import files
from marslm.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, output: Path) -> Figure:
    """Return an empty figure, in inches; InputError if it cannot become the SVG `output`."""
    if output.suffix != ".svg":
        raise InputError(f"{output}: plots are written as SVG; give a name that ends in .svg")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'marslm[bench]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_svg(figure: Figure, output: Path) -> None:
    """Write the figure."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    files.write_text(output, picture.getvalue())
