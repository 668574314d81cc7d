"""The training objectives as modules: a batch in, a loss and its statistics out.

`TwoStream` is the paper's: clean and noisy rows in one forward, everything trained. `FrozenClean`
is for mask-only adapters: the clean stream is the frozen base model, so it is run once without
gradients, its keys and values are kept, and only the masks are trained (arXiv 2507.11851).

Logits are computed only for rows that predict something, a few rows at a time, so memory never
holds rows x vocabulary. Knows nothing about optimisers or files.

Legend: B batch, L clean rows, N noisy rows, R rows with a target, H hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from marslm.core.forms import MARS, Form
from marslm.core.losses import IGNORE, LossCounts, distance_weights, loss_parts
from marslm.core.streams import Rows, distance, join
from marslm.train.attention import SDPA
from marslm.train.balance import Balance
from marslm.train.distillation import NEVER, distill_losses
from marslm.train.gated import GatedModel
from marslm.train.streams import HIDDEN

_CHUNK = 6_000_000
"""Logits that exist at once: 25 MB, about what a CPU's cache holds."""


@dataclass(frozen=True)
class Hits:
    """What a batch showed besides its loss.

    correct, total: how often the argmax was right, by masks seen, index 0 the clean rows.
    mask_loss, ar_loss: the batch's parts of the global means L_mask and L_AR, 0-dim.
    """

    correct: Tensor
    total: Tensor
    mask_loss: Tensor
    ar_loss: Tensor


class Objective(nn.Module, ABC):
    """What the objectives share: a network's body and head, apart."""

    def __init__(
        self, network: PreTrainedModel | PeftModel, mask_token_id: int, most_rows: int
    ) -> None:
        """`network` trains whatever requires gradients in it; `most_rows` follow an anchor."""
        super().__init__()
        self.network = network
        # Whoever shards a model asks it which of its modules are whole layers.
        self._no_split_modules = getattr(network, "_no_split_modules", None)
        self.attention = SDPA
        """What computes attention; `pick_attention` may know a faster one."""
        self._mask_token_id = mask_token_id
        self._most_rows = most_rows
        self._vocabulary: int = network.config.vocab_size

    @property
    def _base(self) -> nn.Module:
        """The transformers model; an adapter lives inside it."""
        network = self.network
        return network.get_base_model() if isinstance(network, PeftModel) else network

    @abstractmethod
    def count_targets(self, batch: dict[str, Any]) -> tuple[float, float]:
        """Return the targets of L_mask and of L_AR in the loss of a batch, by their weights."""

    @abstractmethod
    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss, normalised by the global `counts`, and what the batch showed."""

    def rebalance(self, mask_loss: float, ar_loss: float) -> None:
        """Hear the two losses of a whole optimiser step."""

    def memory(self) -> list[float]:
        """Return what a checkpoint has to keep besides the weights."""
        return []

    def remember(self, memory: list[float]) -> None:
        """Take up what `memory` returned."""

    def _hidden(self, **inputs: Any) -> Tensor:
        """Return the last hidden states [B, rows, H]."""
        hidden: Tensor = self._base.get_submodule("model")(**inputs).last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor, head: nn.Module | None = None) -> Tensor:
        """Return logits [R, V] with [MASK] excluded."""
        logits: Tensor = (head or self._base.get_submodule("lm_head"))(hidden).float()
        logits[:, self._mask_token_id] = NEVER
        return logits

    def _losses(
        self,
        loss: Callable[..., Tensor],
        hidden: Tensor,
        targets: Tensor,
        *more: Tensor,
        head: nn.Module | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return per-row losses and whether each argmax was right, both [R].

        loss: (logits, targets, *more) -> [rows], called on a few rows at a time, and again in the
        backward pass. head: what makes logits of the states, by default the network's own.
        """

        def one_chunk(hidden: Tensor, targets: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
            logits = self._logits(hidden, head)
            return loss(logits, targets, *more), logits.detach().argmax(-1) == targets

        rows = max(1, _CHUNK // self._vocabulary)
        if len(targets) <= rows:
            return one_chunk(hidden, targets, *more)
        chunks = zip(*(torch.split(t, rows) for t in (hidden, targets, *more)), strict=True)
        parts = [checkpoint(one_chunk, *chunk, use_reentrant=False) for chunk in chunks]
        losses, right = zip(*parts, strict=True)
        return torch.cat(losses), torch.cat(right)

    def _hits(
        self, right: Tensor, seen: Tensor, mask_loss: Tensor | None, ar_loss: Tensor | None
    ) -> Hits:
        zeros = torch.zeros(self._most_rows + 1, device=right.device)
        return Hits(
            zeros.index_add(0, seen, right.to(zeros)),
            zeros.index_add(0, seen, torch.ones_like(right).to(zeros)),
            zeros.sum() if mask_loss is None else mask_loss.detach(),
            zeros.sum() if ar_loss is None else ar_loss.detach(),
        )


class TwoStream(Objective):
    """L = L_mask + w * L_AR over clean and noisy rows in one forward of length L + N."""

    def __init__(
        self,
        network: PreTrainedModel | PeftModel,
        mask_token_id: int,
        block_size: int,
        w: float,
        *,
        form: Form = MARS,
        distance_decay: float = 1.0,
        balance: bool = False,
    ) -> None:
        """`network` trains whatever requires gradients in it; see `TuneConfig` for the others."""
        super().__init__(network, mask_token_id, form.trained_rows(block_size))
        self._ar_weight = w
        self._form = form
        self._decay = distance_decay
        self._balance = Balance() if balance else None

    def count_targets(self, batch: dict[str, Any]) -> tuple[float, float]:
        """Count masks and the anchors' first candidates for L_mask, clean rows for L_AR."""
        clean = batch["clean_targets"] != IGNORE
        return _mask_weight(batch, self._decay) + int((clean & batch["first"]).sum()), int(
            clean.sum()
        )

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss, normalised by the global `counts`, and the hits by masks seen."""
        clean, noisy = Rows(**batch["clean"]), Rows(**batch["noisy"])
        rows = join([clean, noisy])
        hidden = self._hidden(
            input_ids=torch.cat([batch["ids"], self._noisy_ids(batch)], dim=1),
            position_ids=rows.position,
            attention_mask=self.attention.mask(rows, bidirectional=self._form.bidirectional),
            use_cache=False,
        )
        targets = torch.cat([batch["clean_targets"], batch["noisy_targets"]], dim=1)
        wanted = targets != IGNORE
        losses, right = self._losses(cross_entropy, hidden[wanted], targets[wanted])
        seen = distance(rows)[wanted]
        first = torch.cat([batch["first"], torch.zeros_like(batch["noisy_ids"]).bool()], dim=1)
        noise = seen > 0
        weighed = losses[noise] * distance_weights(seen[noise], self._decay)
        l_mask, l_ar = loss_parts(weighed, losses[first[wanted]], losses[~noise], counts)
        w = self._ar_weight * (self._balance.ratio if self._balance else 1.0)
        return l_mask + w * l_ar, self._hits(right, seen, l_mask, l_ar)

    def rebalance(self, mask_loss: float, ar_loss: float) -> None:
        """Follow the ratio of the two losses, where w is balanced."""
        if self._balance:
            self._balance.hear(mask_loss, ar_loss)

    def memory(self) -> list[float]:
        """Return the balance's running means."""
        return list(self._balance.means) if self._balance else []

    def remember(self, memory: list[float]) -> None:
        """Take up the balance's running means."""
        if self._balance:
            self._balance.means = tuple(memory)

    def _noisy_ids(self, batch: dict[str, Any]) -> Tensor:
        ids: Tensor = batch["noisy_ids"]
        return torch.where(ids == HIDDEN, self._mask_token_id, ids)


class FrozenClean(Objective):
    """L_mask over sampled blocks, on keys and values of a clean stream that is never trained."""

    def __init__(
        self,
        network: PeftModel,
        mask_token_id: int,
        block_size: int,
        kl_weight: float,
        *,
        distance_decay: float = 1.0,
    ) -> None:
        """`network`: the base model with an adapter that can be switched off."""
        super().__init__(network, mask_token_id, block_size - 1)
        self._kl_weight = kl_weight
        self._decay = distance_decay
        self._model = GatedModel(network)

    def count_targets(self, batch: dict[str, Any]) -> tuple[float, float]:
        """Count masks alone: the clean rows are frozen, so nothing of theirs is in the loss."""
        return _mask_weight(batch, self._decay), 0

    def forward(self, batch: dict[str, Any], counts: LossCounts) -> tuple[Tensor, Hits]:
        """Return the loss over the noisy rows and their hits by masks seen.

        The anchors' own predictions are the frozen model's: nothing to train, so not in the loss.
        """
        clean, noisy = Rows(**batch["clean"]), Rows(**batch["noisy"])
        wanted = batch["noisy_targets"] != IGNORE
        clean_hidden, past = self._model.run_clean(batch["ids"], clean)
        hidden = self._model.run_masks(noisy, clean, past)
        same_place = batch["place"][..., None].expand_as(hidden)
        losses, right = distill_losses(
            hidden[wanted],
            batch["noisy_targets"][wanted],
            clean_hidden.gather(1, same_place)[wanted],
            self._model.head,
            self._mask_token_id,
            self._kl_weight,
        )
        seen = distance(noisy)[wanted]
        loss = (losses * distance_weights(seen, self._decay)).sum() / counts.mask
        return loss, self._hits(right, seen, loss, None)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each row, [R]."""
    return F.cross_entropy(logits, targets, reduction="none")


def _mask_weight(batch: dict[str, Any], decay: float) -> float:
    """Return the sum of the weights of the masks that predict something."""
    seen = distance(Rows(**batch["noisy"]))[batch["noisy_targets"] != IGNORE]
    return float(distance_weights(seen, decay).sum())
