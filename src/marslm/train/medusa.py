"""Medusa heads on a frozen model as an objective: the baseline (arXiv 2401.10774, "Medusa-1").

Only clean rows are run, and without gradients: each head learns, from the state that the model's
own head reads, the token a further place ahead. Knows nothing about masks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from marslm.core.losses import IGNORE, LossCounts, distance_weights
from marslm.core.streams import Rows
from marslm.models.medusa import MedusaHeads
from marslm.train.objectives import Hits, Objective, cross_entropy


class Medusa(Objective):
    """The heads' mean loss; head k stands where a mask row that sees k masks does elsewhere."""

    def __init__(
        self,
        network: PreTrainedModel,
        heads: MedusaHeads,
        mask_token_id: int,
        *,
        distance_decay: float = 1.0,
    ) -> None:
        """`network`: frozen. `distance_decay`: what each further head weighs less."""
        super().__init__(network, mask_token_id, len(heads))
        self.heads = heads
        self._decay = distance_decay

    def count_targets(self, batch: dict[str, Any]) -> tuple[float, float]:
        """Count the targets of all heads, by their weights."""
        weight = 0.0
        for head in range(1, len(self.heads) + 1):
            count = int((head_targets(batch, head) != IGNORE).sum())
            weight += count * float(distance_weights(torch.tensor([head]), self._decay))
        return weight, 0

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the weighed mean loss over all heads."""
        hidden = self._frozen(batch)
        parts = [self._one(batch, hidden, head) for head in range(1, len(self.heads) + 1)]
        losses, right, seen = (torch.cat(part) for part in zip(*parts, strict=True))
        loss = (losses * distance_weights(seen, self._decay)).sum() / counts.mask
        return loss, self._hits(right, seen, loss, None)

    @torch.no_grad()
    def _frozen(self, batch: dict[str, Any]) -> Tensor:
        """Return the states [B, L, H] that the model's own head reads."""
        clean = Rows(**batch["clean"])
        packed = bool((clean.document > 0).any())
        return self._hidden(
            input_ids=batch["ids"],
            position_ids=clean.position,
            attention_mask=self.attention.mask(clean) if packed else None,
            use_cache=False,
        )

    def _one(
        self, batch: dict[str, Any], hidden: Tensor, head: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return one head's losses, whether its argmax was right, and its number, all [R]."""
        targets = head_targets(batch, head)
        wanted = targets != IGNORE
        states = self.heads.states(hidden[wanted].to(self.heads.dtype), head)
        output = self.heads.outputs[head - 1]
        losses, right = self._losses(cross_entropy, states, targets[wanted], head=output)
        return losses, right, torch.full_like(targets[wanted], head)


def head_targets(batch: dict[str, Any], head: int) -> Tensor:
    """Return for each clean row [B, L] the supervised token that head `head` guesses, or IGNORE.

    A row predicts if its own next token is supervised too, and the further one is in the same text.
    """
    targets: Tensor = batch["clean_targets"]
    document: Tensor = batch["clean"]["document"]
    ahead = torch.full_like(targets, IGNORE)
    ahead[:, :-head] = targets[:, head:]
    same = torch.zeros_like(targets, dtype=torch.bool)
    same[:, :-head] = document[:, head:] == document[:, :-head]
    return ahead.masked_fill(~same | (targets == IGNORE), IGNORE)
