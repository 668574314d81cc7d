"""What a run tells whoever watches: plain facts, rendered elsewhere.

Knows nothing about terminals or files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class Progress:
    """One optimiser step.

    loss: L; mask_loss and ar_loss: L_mask and L_AR in it. accuracy: by masks seen, index 0 the
    clean rows; None: not measured. tokens: clean tokens of the run so far.
    """

    step: int
    fraction: float
    loss: float
    mask_loss: float
    ar_loss: float
    learning_rate: float
    accuracy: tuple[float | None, ...]
    tokens: int
    tokens_per_second: float
    elapsed: float
    seconds_left: float | None


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete."""

    step: int
    folder: Path


Event: TypeAlias = "Progress | Saved"
Listener: TypeAlias = Callable[[Event], None]
