"""Checkpoints of a run: when one is due, which is whole, what it holds beside the optimiser.

A checkpoint counts once its mark is there, and that comes last, so a killed run leaves no half one.
Knows nothing about models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl

from marslm import files
from marslm.errors import InputError
from marslm.models.record import BaseMarks, MarsRecord
from marslm.train.budget import Budget

WEIGHTS = "trained.safetensors"
_PROGRESS = "progress.json"
_COMPLETE = "complete"


class SaveByTime(TrainerCallback):
    """Asks for a checkpoint every so many minutes of the run."""

    def __init__(self, minutes: float, budget: Budget) -> None:
        """`budget` keeps the clock, which all processes share."""
        self._seconds = minutes * 60
        self._budget = budget
        self._last: float | None = None

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        """Ask when the time has come."""
        if self._last is None:
            self._last = self._budget.started_at
        if self._budget.shared_elapsed - self._last >= self._seconds:
            control.should_save = True
            self._last = self._budget.shared_elapsed


def mark_complete(folder: Path, progress: dict[str, Any]) -> None:
    """Write `progress` into a checkpoint whose other files are there, and make it count."""
    files.write_text(folder / _PROGRESS, json.dumps(progress))
    (folder / _COMPLETE).touch()


def read_progress(folder: Path) -> dict[str, Any]:
    """Return what `mark_complete` wrote."""
    progress: dict[str, Any] = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    return progress


def check_same_settings(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise InputError if a run would be resumed with settings other than its own."""
    other = [name for name, value in now.items() if saved.get(name) != value]
    if other:
        raise InputError(
            f"this run was started with another {other[0]} ({saved.get(other[0])}): resume "
            "with the same settings, or start anew in another folder"
        )


def check_same_model(progress: dict[str, Any], now: MarsRecord) -> None:
    """Raise InputError if a run would be resumed on a model or [MASK] that it was not started with.

    Checkpoints that are older than this check say nothing about either, and pass.
    """
    if "base" not in progress:
        return
    mask, marks = progress["mask_token_id"], progress["base"]
    saved = BaseMarks(**{**marks, "weights": tuple(marks["weights"])})
    alike = saved.architecture == now.base.architecture and saved.tokenizer == now.base.tokenizer
    if not (alike and saved.same_weights(now.base)):
        raise InputError(
            "this run was started on another model: resume it with the --model that it had, or "
            "start anew in another folder"
        )
    check_same_settings({"mask_token_id": mask}, {"mask_token_id": now.mask_token_id})


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; a killed run may have left an incomplete one."""
    complete = [mark.parent for mark in folder.glob(f"checkpoint-*/{_COMPLETE}")]
    return max(complete, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Return after how many steps a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])
