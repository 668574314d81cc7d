"""`log.jsonl` of a run: one JSON object a line, a step's or the held-out prompts'.

Knows nothing about what the numbers mean.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marslm import files
from marslm.errors import InputError
from marslm.train.checkpoints import step_of
from marslm.train.events import Event, Listener, Progress

_NAME = "log.jsonl"


class LogFile:
    """Appends training events to a run's log and passes them on."""

    def __init__(self, run: Path, listener: Listener, checkpoint: Path | None) -> None:
        """Keep what an earlier part logged up to its checkpoint: the rest will be run again."""
        self._path = run / _NAME
        self._listener = listener
        last_step = step_of(checkpoint) if checkpoint else 0
        if self._path.exists():
            rows = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [row for row in rows if _step(row, last_step + 1) <= last_step]
            files.write_text(self._path, "".join(kept))

    def __call__(self, event: Event) -> None:
        """Hear a training event."""
        if isinstance(event, Progress):
            self.write({"event": "step", **asdict(event)})
        self._listener(event)

    def write(self, row: dict[str, object]) -> None:
        """Append one row."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _step(row: str, default: int) -> int:
    """Return a row's step; a killed run may have left half a row, which is not kept."""
    try:
        return int(json.loads(row).get("step", default))
    except json.JSONDecodeError:
        return default


def read_log(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a run's steps and its held-out results, both as rows.

    Raises InputError without a log or with none of its steps.
    """
    path = run / _NAME
    if not path.is_file():
        raise InputError(f"{run} has no {_NAME}: name a folder that `marslm tune` wrote")
    steps: list[dict[str, Any]] = []
    held_out: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # the half line that a killed run leaves
        if row["event"] == "step":
            steps.append(row)
        else:
            held_out = row["results"]
    if not steps:
        raise InputError(f"{path} holds no steps yet: wait for the first")
    return steps, held_out
