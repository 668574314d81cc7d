"""Sums of one optimiser step, over its micro-batches and all processes.

Knows nothing about who reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from marslm.train.objectives import Hits


class Meter:
    """Adds up what micro-batches showed; `read` returns it and starts the next step.

    all_tokens: clean tokens of the whole run.
    """

    def __init__(self, kinds: int, device: torch.device) -> None:
        """`kinds`: how many kinds of rows there are, by masks seen."""
        self._kinds = kinds
        self._device = device
        self.all_tokens = 0
        self._reset()

    def _reset(self) -> None:
        self.batches = 0
        # Loss, L_mask, L_AR, clean tokens, right answers and answers by kind.
        self._sums = torch.zeros(4 + 2 * self._kinds, dtype=torch.float64, device=self._device)
        self._since = time.monotonic()

    def add(self, loss: Tensor, hits: Hits, tokens: Tensor) -> None:
        """Take in one micro-batch; nothing waits for the device."""
        self.batches += 1
        facts = torch.stack([loss.detach(), hits.mask_loss, hits.ar_loss, tokens.to(loss)])
        self._sums += torch.cat([facts, hits.correct.to(loss), hits.total.to(loss)])

    def read(self, add_up: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return the facts since the last call; `add_up` sums a tensor over all processes."""
        sums = add_up(self._sums).tolist()
        loss, mask_loss, ar_loss, tokens = sums[:4]
        pairs = zip(sums[4 : 4 + self._kinds], sums[4 + self._kinds :], strict=True)
        self.all_tokens += int(tokens)
        facts = {
            # Micro-batches are parts of one global mean, so they add up.
            "loss": loss,
            "mask_loss": mask_loss,
            "ar_loss": ar_loss,
            "accuracy": tuple(right / count if count else None for right, count in pairs),
            "tokens": self.all_tokens,
            "tokens_per_second": tokens / max(1e-9, time.monotonic() - self._since),
        }
        self._reset()
        return facts
