"""Pictures of what a command prints, for documents: an SVG of a terminal, colours included.

Knows nothing about the commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from marslm import files
from marslm.cli.render import console
from marslm.errors import InputError


def start_recording(path: Path, arguments: Sequence[str]) -> Callable[[], None]:
    """Record what is printed from now on; return a function that writes it to `path`.

    The picture's title is the command, less the option that asked for the picture. Raises
    InputError if no file can be written there.
    """
    if path.is_dir() or not files.is_writable_place(path):
        raise InputError(f"--svg {path}: no file can be written there; name another")
    console.record = True
    title = shlex.join(["marslm", *_without_svg(list(arguments))])

    def write() -> None:
        # A fixed id: the same output gives the same file.
        files.write_text(path, console.export_svg(title=title, unique_id="marslm"))
        console.record = False

    return write


def _without_svg(arguments: list[str]) -> list[str]:
    for place, argument in enumerate(arguments):
        if argument == "--svg":
            return arguments[:place] + arguments[place + 2 :]
        if argument.startswith("--svg="):
            return arguments[:place] + arguments[place + 1 :]
    return arguments
