"""The training objectives as modules: a batch in, a loss and its statistics out.

`TwoStream` is the paper's: clean and noisy rows in one forward, everything trained. `FrozenClean`
is for mask-only adapters: the clean stream is the frozen base model, so it is run once without
gradients, its keys and values are kept, and only the masks are trained (arXiv 2507.11851).

Logits are computed only for rows that predict something, a few rows at a time, so memory never
holds rows x vocabulary. Knows nothing about optimisers or files.

Legend: B batch, L clean rows, N noisy rows, R rows with a target, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from marslm.core.losses import IGNORE, LossCounts, mars_loss
from marslm.core.masks import dense_mask
from marslm.core.streams import Rows, distance, join
from marslm.train.distillation import NEVER, distill_losses
from marslm.train.gated import GatedModel

_CHUNK = 6_000_000
"""Logits that exist at once: 25 MB, about what a CPU's cache holds."""


@dataclass(frozen=True)
class Hits:
    """How often the argmax was right, by masks seen: both [block_size], index 0 the clean rows."""

    correct: Tensor
    total: Tensor


class Objective(nn.Module):
    """What both objectives share: a network's body and head, apart."""

    def __init__(
        self, network: PreTrainedModel | PeftModel, mask_token_id: int, block_size: int
    ) -> None:
        """`network` trains whatever requires gradients in it."""
        super().__init__()
        self.network = network
        self._mask_token_id = mask_token_id
        self._block_size = block_size
        self._vocabulary: int = network.config.vocab_size

    @property
    def _base(self) -> nn.Module:
        """The transformers model; an adapter lives inside it."""
        network = self.network
        return network.get_base_model() if isinstance(network, PeftModel) else network

    def count_targets(self, batch: dict[str, Any]) -> tuple[int, int]:
        """Return how many targets of L_mask and of L_AR the loss of a batch takes in."""
        raise NotImplementedError

    def _hidden(self, **inputs: Any) -> Tensor:
        """Return the last hidden states [B, rows, H]."""
        hidden: Tensor = self._base.get_submodule("model")(**inputs).last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] with [MASK] excluded."""
        logits: Tensor = self._base.get_submodule("lm_head")(hidden).float()
        logits[:, self._mask_token_id] = NEVER
        return logits

    def _losses(
        self, loss: Callable[..., Tensor], hidden: Tensor, targets: Tensor, *more: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return per-row losses and whether each argmax was right, both [R].

        loss: (logits, targets, *more) -> [rows], called on a few rows at a time, and again in the
        backward pass.
        """

        def one_chunk(hidden: Tensor, targets: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
            logits = self._logits(hidden)
            return loss(logits, targets, *more), logits.detach().argmax(-1) == targets

        rows = max(1, _CHUNK // self._vocabulary)
        if len(targets) <= rows:
            return one_chunk(hidden, targets, *more)
        chunks = zip(*(torch.split(t, rows) for t in (hidden, targets, *more)), strict=True)
        parts = [checkpoint(one_chunk, *chunk, use_reentrant=False) for chunk in chunks]
        losses, right = zip(*parts, strict=True)
        return torch.cat(losses), torch.cat(right)

    def _hits(self, right: Tensor, seen: Tensor) -> Hits:
        zeros = torch.zeros(self._block_size, device=right.device)
        return Hits(
            zeros.index_add(0, seen, right.to(zeros)),
            zeros.index_add(0, seen, torch.ones_like(right).to(zeros)),
        )


class TwoStream(Objective):
    """L = L_mask + w * L_AR over clean and noisy rows in one forward of length L + N."""

    def __init__(
        self, network: PreTrainedModel | PeftModel, mask_token_id: int, block_size: int, w: float
    ) -> None:
        """`network` trains whatever requires gradients in it."""
        super().__init__(network, mask_token_id, block_size)
        self._ar_weight = w

    def count_targets(self, batch: dict[str, Any]) -> tuple[int, int]:
        """Count masks and the anchors' first candidates for L_mask, clean rows for L_AR."""
        clean = batch["clean_targets"] != IGNORE
        masks = int((batch["noisy_targets"] != IGNORE).sum())
        return masks + int((clean & batch["first"]).sum()), int(clean.sum())

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss, normalised by the global `counts`, and the hits by masks seen."""
        clean, noisy = Rows(**batch["clean"]), Rows(**batch["noisy"])
        rows = join([clean, noisy])
        masks = torch.full_like(noisy.position, self._mask_token_id)
        hidden = self._hidden(
            input_ids=torch.cat([batch["ids"], masks], dim=1),
            position_ids=rows.position,
            attention_mask=dense_mask(rows, rows),
            use_cache=False,
        )
        targets = torch.cat([batch["clean_targets"], batch["noisy_targets"]], dim=1)
        wanted = targets != IGNORE
        losses, right = self._losses(_cross_entropy, hidden[wanted], targets[wanted])
        seen = distance(rows)[wanted]
        first = torch.cat([batch["first"], torch.zeros_like(masks, dtype=torch.bool)], dim=1)
        loss = mars_loss(
            losses[seen > 0], losses[first[wanted]], losses[seen == 0], counts, self._ar_weight
        )
        return loss, self._hits(right, seen)


class FrozenClean(Objective):
    """L_mask over sampled blocks, on keys and values of a clean stream that is never trained."""

    def __init__(
        self, network: PeftModel, mask_token_id: int, block_size: int, kl_weight: float
    ) -> None:
        """`network`: the base model with an adapter that can be switched off."""
        super().__init__(network, mask_token_id, block_size)
        self._kl_weight = kl_weight
        self._model = GatedModel(network)

    def count_targets(self, batch: dict[str, Any]) -> tuple[int, int]:
        """Count masks alone: the clean rows are frozen, so nothing of theirs is in the loss."""
        return int((batch["noisy_targets"] != IGNORE).sum()), 0

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss over the noisy rows and their hits by masks seen.

        The anchors' own predictions are the frozen model's: nothing to train, so not in the loss.
        """
        clean, noisy = Rows(**batch["clean"]), Rows(**batch["noisy"])
        wanted = batch["noisy_targets"] != IGNORE
        clean_hidden, past = self._model.run_clean(batch["ids"], clean)
        hidden = self._model.run_masks(noisy, clean, past)
        # Padding rows stand at position 0, which every text has.
        same_place = noisy.position[..., None].expand_as(hidden)
        losses, right = distill_losses(
            hidden[wanted],
            batch["noisy_targets"][wanted],
            clean_hidden.gather(1, same_place)[wanted],
            self._model.head,
            self._mask_token_id,
            self._kl_weight,
        )
        return losses.sum() / counts.mask, self._hits(right, distance(noisy)[wanted])


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")
