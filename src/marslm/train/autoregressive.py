"""Plain supervised fine-tuning as an objective: stage 1 of the paper, and its control.

Written apart from the two-stream objectives so that a comparison with it is a comparison with what
everybody runs: no noisy rows, and no mask where a causal one does. Knows nothing about blocks.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from marslm.core.losses import IGNORE, LossCounts
from marslm.core.streams import Rows, distance
from marslm.train.objectives import Hits, Objective, cross_entropy


class Autoregressive(Objective):
    """L_AR alone, over the clean rows."""

    def count_targets(self, batch: dict[str, Any]) -> tuple[float, float]:
        """Count the supervised tokens."""
        return 0, int((batch["clean_targets"] != IGNORE).sum())

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the mean next-token loss."""
        clean, targets = Rows(**batch["clean"]), batch["clean_targets"]
        packed = bool((clean.document > 0).any())
        hidden = self._hidden(
            input_ids=batch["ids"],
            position_ids=clean.position,
            # Padding comes last, where no text sees it.
            attention_mask=self.attention.mask(clean) if packed else None,
            use_cache=False,
        )
        wanted = targets != IGNORE
        losses, right = self._losses(cross_entropy, hidden[wanted], targets[wanted])
        loss = losses.sum() / counts.ar
        return loss, self._hits(right, distance(clean)[wanted], None, loss)
