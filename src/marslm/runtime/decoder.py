"""The forward pass for decoding: a Llama-, Qwen2- or Qwen3-style model over a slot cache.

The weights are a transformers model's and the results equal its own (tests pin it); the pass is
written out here because decoding one row at a time is bound by small operations: projections are
fused, weights packed, keys and values written once, K/V heads never repeated, and logits computed
only for the rows that are asked for. A mask-only adapter changes the rows of masks alone; without
such rows its code is not entered.

Legend: T rows of all requests, H query heads, K key/value heads, G = H / K, D head size, V
vocabulary. Knows nothing about requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marslm.models.adapter import Adapter, LowRank
from marslm.models.loading import MarsModel
from marslm.models.packed import Linear, make_linear
from marslm.runtime.cache import SlotCache

RowIndex: TypeAlias = "slice | Tensor"


@dataclass(frozen=True)
class AttentionGroup:
    """Requests whose attention is computed together, padded to one width.

    rows: their rows in the batch. slots: their cache slots, a range that may hold idle ones too.
    width: query rows per slot. keys: cells to read. mask: what to add to the scores
    [slots, 1, width * G, keys], None if every cell may be seen. scatter: for each row its place in
    the padded [slots * width], None if the rows fill it in order.
    """

    rows: slice
    slots: slice
    width: int
    keys: int
    mask: Tensor | None
    scatter: Tensor | None


@dataclass(frozen=True)
class RowBatch:
    """The input of one forward.

    ids, slots, cells: int64 [T]; a row's cell is also its rotary position. masks: which rows are
    [MASK]s, None if none. outputs: rows whose logits are wanted.
    """

    ids: Tensor
    slots: Tensor
    cells: Tensor
    groups: list[AttentionGroup]
    masks: RowIndex | None
    outputs: RowIndex


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


@dataclass(frozen=True)
class Layer:
    """One decoder layer, projections fused. query_norm and key_norm are Qwen3's."""

    attention_norm: Tensor
    query_key_value: Projection
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


class Decoder:
    """A model ready to decode; `forward` fills the cache and returns logits."""

    def __init__(self, model: MarsModel, *, max_length: int, pack: bool = True) -> None:
        """Take the weights of `model`, packed where that helps, and tabulate rotary angles."""
        network, config = model.network, model.network.config
        body = network.get_submodule("model")
        head = network.get_output_embeddings()  # type: ignore[no-untyped-call]
        assert isinstance(head, nn.Linear)
        self.device, self.dtype = head.weight.device, head.weight.dtype
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.max_length = max_length
        self._epsilon: float = config.rms_norm_eps
        self._mask_token_id = model.mask_token_id
        self._embedding = _weight(network.get_input_embeddings())
        self._final_norm = _weight(body.get_submodule("norm"))
        self._head = make_linear(head.weight.detach(), pack=pack)
        self._layers = [
            _build_layer(body, index, model.adapter, pack)
            for index in range(config.num_hidden_layers)
        ]
        self._mask_embedding = (
            model.adapter.mask_embedding.to(self._embedding) if model.adapter else None
        )
        self._cos, self._sin = self._rotary_table(body.get_submodule("rotary_emb"), max_length)

    def new_cache(self, slots: int) -> SlotCache:
        """Return an empty cache for `slots` requests of up to `max_length` tokens."""
        return SlotCache(
            layers=len(self._layers),
            slots=slots,
            kv_heads=self.kv_heads,
            max_length=self.max_length,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, batch: RowBatch, cache: SlotCache) -> Tensor:
        """Run all rows, store their keys and values, return logits [outputs, V].

        [MASK]'s logit is -inf: it can never be generated.
        """
        x = self._embedding[batch.ids]
        if batch.masks is not None and self._mask_embedding is not None:
            x[batch.masks] = self._mask_embedding
        cos, sin = self._cos[batch.cells], self._sin[batch.cells]
        for index, layer in enumerate(self._layers):
            x = x + self._attention(layer, index, x, cos, sin, batch, cache)
            x = x + self._mlp(layer, x, batch.masks)
        logits = self._head(self._norm(x[batch.outputs], self._final_norm))
        logits[:, self._mask_token_id] = -torch.inf
        return logits

    def _attention(
        self,
        layer: Layer,
        index: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: RowBatch,
        cache: SlotCache,
    ) -> Tensor:
        projected = layer.query_key_value(self._norm(x, layer.attention_norm), batch.masks)
        heads = projected.view(len(x), self.heads + 2 * self.kv_heads, self.head_dim)
        rotated = heads[:, : self.heads + self.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated[:, : self.heads] = self._norm(rotated[:, : self.heads], layer.query_norm)
            rotated[:, self.heads :] = self._norm(rotated[:, self.heads :], layer.key_norm)
        # x * cos + rotate_half(x) * sin, with the half's sign folded into the sine table.
        swapped = rotated.roll(self.head_dim // 2, dims=-1)
        rotated.mul_(cos).addcmul_(swapped, sin)
        cache.write(index, heads[:, self.heads :], batch.slots, batch.cells)
        query = heads[:, : self.heads]
        mixed = [self._attend(query[g.rows], g, index, cache) for g in batch.groups]
        return layer.output(mixed[0] if len(mixed) == 1 else torch.cat(mixed), batch.masks)

    def _attend(self, query: Tensor, group: AttentionGroup, index: int, cache: SlotCache) -> Tensor:
        """Attend for one group: query [rows, H, D] -> [rows, H * D]."""
        slots, width = group.slots.stop - group.slots.start, group.width
        if group.scatter is not None:
            padded = query.new_zeros(slots * width, self.heads, self.head_dim)
            query = padded.index_copy_(0, group.scatter, query)
        # The G query heads of one K/V head become query rows of it, so nothing is repeated.
        folded = query.reshape(slots, width, self.kv_heads, -1, self.head_dim).transpose(1, 2)
        keys, values = cache.read(index, group.slots, group.keys)
        mixed = F.scaled_dot_product_attention(
            folded.reshape(slots, self.kv_heads, -1, self.head_dim), keys, values, group.mask
        )
        mixed = mixed.view(slots, self.kv_heads, width, -1, self.head_dim).transpose(1, 2)
        flat = mixed.reshape(slots * width, -1)
        return flat if group.scatter is None else flat[group.scatter]

    def _mlp(self, layer: Layer, x: Tensor, masks: RowIndex | None) -> Tensor:
        gate, up = layer.gate_up(self._norm(x, layer.mlp_norm), masks).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up), masks)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._epsilon)

    def _rotary_table(self, rotary: nn.Module, length: int) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines [length, 1, D] from the network's own module."""
        like = torch.empty(1, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            cos, sin = rotary(like, torch.arange(length, device=self.device)[None])
        sign = torch.ones(self.head_dim, dtype=self.dtype, device=self.device)
        sign[: self.head_dim // 2] = -1
        return cos[0].unsqueeze(1), (sin[0] * sign).unsqueeze(1)


def _build_layer(body: nn.Module, index: int, adapter: Adapter | None, pack: bool) -> Layer:
    def module(name: str) -> nn.Module:
        return body.get_submodule(f"layers.{index}.{name}")

    def fuse(*names: str) -> Projection:
        linears = [module(name) for name in names]
        updates = (adapter.updates if adapter else {}).get
        found = [updates(f"model.layers.{index}.{name}") for name in names]
        weight, bias = _fuse_weights(linears)
        return Projection(make_linear(weight, bias, pack=pack), _fuse_updates(linears, found, pack))

    has_head_norms = hasattr(module("self_attn"), "q_norm")
    return Layer(
        attention_norm=_weight(module("input_layernorm")),
        query_key_value=fuse("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        query_norm=_weight(module("self_attn.q_norm")) if has_head_norms else None,
        key_norm=_weight(module("self_attn.k_norm")) if has_head_norms else None,
        output=fuse("self_attn.o_proj"),
        mlp_norm=_weight(module("post_attention_layernorm")),
        gate_up=fuse("mlp.gate_proj", "mlp.up_proj"),
        down=fuse("mlp.down_proj"),
    )


def _fuse_weights(linears: list[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """Return the linears' weights as one; theirs become views of it, so nothing is held twice."""
    fused = torch.cat([_weight(linear) for linear in linears])
    parts = torch.split(fused, [len(_weight(linear)) for linear in linears])
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
    weights = [_weight(linear) for linear in linears]
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


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()
