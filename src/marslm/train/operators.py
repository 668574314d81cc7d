"""The operations of a decoder layer that autograd would do slowly, each with its own gradient.

Frozen weights get none, nothing is computed twice, and what adds up into one tensor does so in
place. Every operation computes in the dtype of its input; sums over a row of a narrow one are
float32. Knows nothing about layers or models.

Legend: R rows, H hidden size, r rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) * weight over the last axis; `weight` is frozen."""
    return _RMSNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call, no-any-return]


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        unit, width = _wide(x), x.shape[-1]
        length = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
        inverse = length.square_().div_(width).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return unit.mul_(inverse).to(x.dtype).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        unit = _wide(x).mul_(inverse)
        towards = _wide(gradients[0]).mul_(weight)
        share = (towards * unit).sum(-1, keepdim=True).div_(x.shape[-1])
        return towards.sub_(unit.mul_(share)).mul_(inverse).to(x.dtype), None, None


def _wide(x: Tensor) -> Tensor:
    """Return a copy of `x` in a dtype that rows may be added up in."""
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)


def low_rank_linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    downs: Sequence[Tensor],
    ups: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Return x W^T + b + (x A^T) B^T for each of several linears of one input.

    x: [R, in]. weights W: [out, in], frozen, as are the biases b [out] or None. downs A: [r, in].
    ups B: [out, r]. A and B may be wider than x: they are cast once, and their gradients back.
    """
    down = torch.cat(list(downs)).to(x.dtype)
    narrow_ups = [up.to(x.dtype) for up in ups]
    return _LowRankLinears.apply(x, weights, biases, down, *narrow_ups)  # type: ignore[no-untyped-call, no-any-return]


class _LowRankLinears(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor | None],
        down: Tensor,
        *ups: Tensor,
    ) -> tuple[Tensor, ...]:
        inner = F.linear(x, down)
        ctx.weights = weights
        ctx.save_for_backward(x, down, inner, *ups)
        return tuple(
            F.linear(x, weight, bias).addmm_(part, up.T)
            for weight, bias, up, part in zip(weights, biases, ups, _split(inner, ups), strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, down, inner, *ups = ctx.saved_tensors
        of_inner = torch.cat([g @ up for g, up in zip(gradients, ups, strict=True)], dim=1)
        of_x = of_inner @ down
        for gradient, weight in zip(gradients, ctx.weights, strict=True):
            of_x.addmm_(gradient, weight)
        parts = _split(inner, ups)
        of_ups = [g.T @ part for g, part in zip(gradients, parts, strict=True)]
        return of_x, None, None, of_inner.T @ x, *of_ups


def _split(inner: Tensor, ups: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.split(inner, [up.shape[1] for up in ups], dim=1)
