"""The training objectives as modules: a batch in, a loss and its statistics out.

`TwoStream` is the paper's: clean and noisy rows in one forward, everything trained. `FrozenClean`
is for mask-only adapters: the clean stream is the frozen base model, so it is run once without
gradients and its keys and values are kept, and only the masks are trained (arXiv 2507.11851).

Legend: B batch, L clean rows, N noisy rows, H hidden size, V vocabulary. Logits are computed only
for rows that predict something. Knows nothing about optimisers or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from marslm.core.losses import IGNORE, LossCounts, distill_loss, mars_loss
from marslm.core.masks import dense_mask
from marslm.core.streams import Rows, distance, join

_NEVER = -1e4
"""Logit of [MASK] in training: no probability, but finite, since KL multiplies it by zero."""


@dataclass(frozen=True)
class Hits:
    """How often the argmax was right, by masks seen: both [B], index 0 the clean rows."""

    correct: Tensor
    total: Tensor


class Objective(Protocol):
    """What the trainer needs of an objective."""

    def __call__(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss and the hits by distance."""


def count_targets(batch: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of targets in a batch: of L_mask (first candidates included) and L_AR."""
    clean = batch["clean_targets"] != IGNORE
    noisy = int((batch["noisy_targets"] != IGNORE).sum())
    return noisy + int((clean & batch["first"]).sum()), int(clean.sum())


class TwoStream(nn.Module):
    """L = L_mask + w * L_AR over clean and noisy rows in one forward of length L + N."""

    def __init__(
        self, network: PreTrainedModel | PeftModel, mask_token_id: int, block_size: int, w: float
    ) -> None:
        """`network` trains whatever requires gradients in it."""
        super().__init__()
        self.network = network
        self._mask_token_id = mask_token_id
        self._block_size = block_size
        self._ar_weight = w

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss, normalised by the global `counts`, and the hits by distance."""
        clean, noisy = Rows(**batch["clean"]), Rows(**batch["noisy"])
        rows = join([clean, noisy])
        masks = torch.full_like(noisy.position, self._mask_token_id)
        hidden = _body(self.network)(
            input_ids=torch.cat([batch["ids"], masks], dim=1),
            position_ids=rows.position,
            attention_mask=dense_mask(rows, rows),
            use_cache=False,
        ).last_hidden_state
        targets = torch.cat([batch["clean_targets"], batch["noisy_targets"]], dim=1)
        wanted = targets != IGNORE
        logits = _logits(self.network, hidden[wanted], self._mask_token_id)
        losses = F.cross_entropy(logits.float(), targets[wanted], reduction="none")
        is_noisy = (distance(rows) > 0)[wanted]
        is_first = torch.cat([batch["first"], torch.zeros_like(noisy.block).bool()], dim=1)[wanted]
        loss = mars_loss(
            losses[is_noisy], losses[is_first], losses[~is_noisy], counts, self._ar_weight
        )
        return loss, _hits(logits, targets[wanted], distance(rows)[wanted], self._block_size)


class FrozenClean(nn.Module):
    """L_mask over sampled blocks, on the keys and values of a clean stream that is never trained."""

    def __init__(
        self, network: PeftModel, mask_token_id: int, block_size: int, kl_weight: float
    ) -> None:
        """`network`: the base model with an adapter that can be switched off."""
        super().__init__()
        self.network = network
        self._mask_token_id = mask_token_id
        self._block_size = block_size
        self._kl_weight = kl_weight

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss over the noisy rows and the hits by distance."""
        clean, noisy = Rows(**batch["clean"]), Rows(**batch["noisy"])
        wanted = batch["noisy_targets"] != IGNORE
        cache, teacher = self._run_clean(batch["ids"], clean, noisy, wanted)
        hidden = _body(self.network)(
            input_ids=torch.full_like(noisy.position, self._mask_token_id),
            position_ids=noisy.position,
            attention_mask=dense_mask(noisy, join([clean, noisy])),
            cache=cache,
        ).last_hidden_state
        logits = _logits(self.network, hidden[wanted], self._mask_token_id)
        targets = batch["noisy_targets"][wanted]
        losses = distill_loss(logits, targets, teacher, self._kl_weight)
        # The anchors' own predictions are the frozen model's: nothing to train, so not counted.
        hits = _hits(logits, targets, distance(noisy)[wanted], self._block_size)
        return losses.sum() / counts.mask, hits

    @torch.no_grad()
    def _run_clean(
        self, ids: Tensor, clean: Rows, noisy: Rows, wanted: Tensor
    ) -> tuple[DynamicCache, Tensor]:
        """Return the base model's keys and values, and its logits where the masks stand."""
        cache = DynamicCache()
        with self.network.disable_adapter():
            hidden = _body(self.network)(
                input_ids=ids,
                position_ids=clean.position,
                attention_mask=dense_mask(clean, clean),
                cache=cache,
                use_cache=True,
            ).last_hidden_state
            if self._kl_weight == 0:
                return cache, hidden.new_zeros(())
            same_place = noisy.position.clamp(max=hidden.shape[1] - 1)[..., None]
            at_masks = hidden.gather(1, same_place.expand(-1, -1, hidden.shape[-1]))
            return cache, _logits(self.network, at_masks[wanted], self._mask_token_id)


def _body(network: nn.Module) -> nn.Module:
    """Return the network without its head; an adapter lives inside it."""
    base = network.get_base_model() if isinstance(network, PeftModel) else network
    return base.get_submodule("model")


def _logits(network: nn.Module, hidden: Tensor, mask_token_id: int) -> Tensor:
    """Return logits [rows, V] with [MASK] excluded."""
    base = network.get_base_model() if isinstance(network, PeftModel) else network
    head = base.get_output_embeddings()
    logits: Tensor = head(hidden)
    never = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    never[mask_token_id] = True
    return logits.masked_fill(never, _NEVER)


@torch.no_grad()
def _hits(logits: Tensor, targets: Tensor, seen: Tensor, block_size: int) -> Hits:
    right = (logits.argmax(-1) == targets).to(torch.float32)
    zeros = torch.zeros(block_size, device=logits.device)
    return Hits(zeros.index_add(0, seen, right), zeros.index_add(0, seen, torch.ones_like(right)))
