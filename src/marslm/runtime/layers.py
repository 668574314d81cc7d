"""A decoder layer's weights, made ready: fused, packed, with a mask-only adapter attached.

Knows nothing about requests, caches or attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marslm.models.adapter import Adapter, LowRank
from marslm.models.packed import Linear, make_linear

RowIndex: TypeAlias = "slice | Tensor"
"""Rows of a batch: a slice where they follow one another, since that gives views."""

MaskUpdate: TypeAlias = Callable[[Tensor], Tensor]
"""Low-rank update of mask rows: x [masks, in] -> [masks, out]."""


@dataclass(frozen=True)
class Projection:
    """A linear layer, or several fused, and the update that mask rows get on top."""

    base: Linear
    update: MaskUpdate | None

    def __call__(self, x: Tensor, masks: RowIndex | None) -> Tensor:
        """Map x [T, in] to [T, out]."""
        y = self.base(x)
        if masks is not None and self.update is not None:
            y[masks] += self.update(x[masks])
        return y


Norm: TypeAlias = Callable[[Tensor], Tensor]
"""RMS norm over the last axis."""


@dataclass(frozen=True)
class Layer:
    """One decoder layer, projections fused. query_norm and key_norm are Qwen3's."""

    attention_norm: Norm
    query_key_value: Projection
    query_norm: Norm | None
    key_norm: Norm | None
    output: Projection
    mlp_norm: Norm
    gate_up: Projection
    down: Projection


def build_layer(
    body: nn.Module, index: int, adapter: Adapter | None, epsilon: float, pack: bool
) -> Layer:
    """Return layer `index` of a transformers `body`, whose linears become views of fused ones."""

    def module(name: str) -> nn.Module:
        return body.get_submodule(f"layers.{index}.{name}")

    def fuse(*names: str) -> Projection:
        linears = [module(name) for name in names]
        updates = (adapter.updates if adapter else {}).get
        found = [updates(f"model.layers.{index}.{name}") for name in names]
        weight, bias = _fuse_weights(linears)
        return Projection(make_linear(weight, bias, pack=pack), _fuse_updates(linears, found, pack))

    def norm(name: str) -> Norm:
        return make_norm(module(name), epsilon)

    has_head_norms = hasattr(module("self_attn"), "q_norm")
    return Layer(
        attention_norm=norm("input_layernorm"),
        query_key_value=fuse("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        query_norm=norm("self_attn.q_norm") if has_head_norms else None,
        key_norm=norm("self_attn.k_norm") if has_head_norms else None,
        output=fuse("self_attn.o_proj"),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=fuse("mlp.gate_proj", "mlp.up_proj"),
        down=fuse("mlp.down_proj"),
    )


def make_norm(module: nn.Module, epsilon: float) -> Norm:
    """Return x -> x / sqrt(mean(x^2) + epsilon) * weight.

    Written as x / hypot(|x|, sqrt(d * epsilon)) * (weight * sqrt(d)), which is the same in half the
    operations; that counts when a row is all there is. Narrow dtypes keep torch's own, which adds
    up in float32.
    """
    weight = weight_of(module)
    width = len(weight)
    if weight.dtype not in (torch.float32, torch.float64):
        return lambda x: F.rms_norm(x, (width,), weight, epsilon)
    scaled = weight * math.sqrt(width)
    floor = weight.new_tensor(math.sqrt(width * epsilon))

    def norm(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x.div(torch.hypot(length, floor)).mul_(scaled)

    return norm


def _fuse_weights(linears: list[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """Return the linears' weights as one; theirs become views of it, so nothing is held twice."""
    fused = torch.cat([weight_of(linear) for linear in linears])
    parts = torch.split(fused, [len(weight_of(linear)) for linear in linears])
    for linear, part in zip(linears, parts, strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    biases = [linear.bias.detach() for linear in linears if isinstance(linear.bias, Tensor)]
    return fused, torch.cat(biases) if biases else None


def _fuse_updates(
    linears: list[nn.Module], updates: list[LowRank | None], pack: bool
) -> MaskUpdate | None:
    """Return one low-rank update for fused linears: their `up` blocks on a diagonal."""
    if not any(updates):
        return None
    weights = [weight_of(linear) for linear in linears]
    rank = max(update.down.shape[0] for update in updates if update)
    empty = LowRank(weights[0].new_zeros(rank, weights[0].shape[1]), weights[0].new_zeros(0, rank))
    pairs = [
        update or LowRank(empty.down, weight.new_zeros(weight.shape[0], rank))
        for weight, update in zip(weights, updates, strict=True)
    ]
    down = make_linear(torch.cat([pair.down for pair in pairs]).to(weights[0]), pack=pack)
    ups: Tensor = torch.block_diag(*[pair.up for pair in pairs])  # type: ignore[no-untyped-call]
    up = make_linear(ups.to(weights[0]), pack=pack)
    return lambda x: up(down(x))


def weight_of(module: nn.Module) -> Tensor:
    """Return a module's weight, detached."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()
