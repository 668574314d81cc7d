"""The loss of mask rows, from hidden states to numbers, with logits never kept.

Logits exist for a chunk of rows; the gradient is known in closed form (`core/losses`), so it is
taken to the hidden states at once and nothing is computed again in the backward pass. Knows
nothing about the model that made the hidden states.

Legend: R rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from marslm.core.losses import distill_loss

NEVER = -1e4
"""Logit of [MASK] in training: no probability, but finite, since KL multiplies it by zero."""

_PRODUCT = 20_000_000
"""Logits of one product with the head: enough rows to repay reading the head."""

_CHUNK = 1_500_000
"""Logits in float32 at once: 6 MB, which a CPU's caches hold through the passes over them."""


def distill_losses(
    hidden: Tensor,
    targets: Tensor,
    teacher: Tensor,
    head: Tensor,
    mask_token_id: int,
    kl_weight: float,
) -> tuple[Tensor, Tensor]:
    """Return each row's loss (`core.losses.distill_loss`) and whether its argmax was right, [R].

    hidden: the student's hidden states [R, H], the only input with a gradient. teacher: the clean
    stream's [R, H]. head: [V, H], frozen. [MASK] is never predicted.
    """
    return _DistillLosses.apply(  # type: ignore[no-untyped-call, no-any-return]
        hidden, targets, teacher, head, mask_token_id, kl_weight
    )


class _DistillLosses(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        targets: Tensor,
        teacher: Tensor,
        head: Tensor,
        mask_token_id: int,
        kl_weight: float,
    ) -> tuple[Tensor, Tensor]:
        losses, right, gradient = [], [], torch.empty_like(hidden)
        rows = _rows(_PRODUCT, len(head))
        parts = (torch.split(t, rows) for t in (hidden, targets, teacher, gradient))
        for student, tokens, taught_by, into in zip(*parts, strict=True):
            logits, teaching = F.linear(student, head), F.linear(taught_by, head)
            loss, hit = _in_place(logits, tokens, teaching, mask_token_id, kl_weight)
            torch.mm(logits, head, out=into)
            losses.append(loss)
            right.append(hit)
        ctx.save_for_backward(gradient)
        hits = torch.cat(right)
        ctx.mark_non_differentiable(hits)
        return torch.cat(losses), hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_losses: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * of_losses[:, None].to(gradient.dtype), *(None,) * 5)


def _in_place(
    logits: Tensor, targets: Tensor, teacher: Tensor, mask_token_id: int, kl_weight: float
) -> tuple[Tensor, Tensor]:
    """Return losses and hits; `logits` [R, V] are replaced by their gradient."""
    losses, right = [], []
    rows = _rows(_CHUNK, logits.shape[1])
    parts = (torch.split(t, rows) for t in (logits, targets, teacher))
    for chunk, tokens, taught_by in zip(*parts, strict=True):
        student, teaching = (_wide(part, mask_token_id) for part in (chunk, taught_by))
        loss, gradient = distill_loss(student, tokens, teaching, kl_weight)
        chunk.copy_(gradient)
        losses.append(loss)
        right.append(student.max(-1).indices == tokens)
    return torch.cat(losses), torch.cat(right)


def _wide(logits: Tensor, mask_token_id: int) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    wide[:, mask_token_id] = NEVER
    return wide


def _rows(logits: int, vocabulary: int) -> int:
    """Return how many rows have so many logits: at least one."""
    return max(1, logits // vocabulary)
