"""A file of JSON rows that grows as work finishes and survives a kill.

Knows nothing about what the rows mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marslm import files
from marslm.errors import InputError


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Add one line, creating the file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_rows(path: Path, *needed: str) -> list[dict[str, Any]]:
    """Return the rows, none if there is no file; a last line cut off by a kill is dropped from it.

    Raises InputError for a damaged line, or one without the `needed` keys.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = [_parse(path, number, line, needed) for number, line in enumerate(lines[:-1], start=1)]
    if lines[-1]:
        files.write_text(path, "\n".join([*lines[:-1], ""]))
    return rows


def _parse(path: Path, number: int, line: str, needed: tuple[str, ...]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{number} is damaged: delete that line") from error
    if not isinstance(row, dict) or any(key not in row for key in needed):
        raise InputError(
            f"{path}:{number} is not a row of this kind: delete it, or name a new file"
        )
    return row
