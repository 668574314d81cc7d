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

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from marslm.models.loading import MarsModel
from marslm.models.packed import make_linear
from marslm.runtime.cache import SlotCache, Write
from marslm.runtime.layers import Gate, Layer, MaskRows, RMSNorm, RowIndex, build_layer, weight_of


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

    ids, slots, cells, positions: int64 [T]; positions are the rotary ones, which differ from the
    cells in trees. run: (slot, first cell) if all rows belong to one request. masks: which rows are
    [MASK]s, None if none. outputs: rows whose logits are wanted.
    """

    ids: Tensor
    slots: Tensor
    cells: Tensor
    positions: Tensor
    run: tuple[int, int] | None
    groups: list[AttentionGroup]
    masks: MaskRows | None
    outputs: RowIndex


class Decoder:
    """A model ready to decode; `hidden` fills the cache, `logits` says what its states say.

    layers, final_norm: the weights. cos, sin: [max_length, D], rotary angles; of the sines the
    first half is negated.
    """

    def __init__(self, model: MarsModel, *, max_length: int, pack: bool = True) -> None:
        """Take the weights of `model`, packed or narrowed, and tabulate rotary angles."""
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
        self._mask_token_id = model.mask_token_id
        self._embedding = weight_of(network.get_input_embeddings())
        self.final_norm = RMSNorm(body.get_submodule("norm"), config.rms_norm_eps)
        self._head = make_linear(head.weight.detach(), pack=pack, quantize=model.quantize)
        self.layers = [
            build_layer(
                body, index, model.adapter, config.rms_norm_eps, pack, quantize=model.quantize
            )
            for index in range(config.num_hidden_layers)
        ]
        self._mask_embedding = (
            model.adapter.mask_embedding.to(self._embedding) if model.adapter else None
        )
        self.cos, self.sin = self._rotary_table(body.get_submodule("rotary_emb"), max_length)

    def new_cache(self, slots: int) -> SlotCache:
        """Return an empty cache for `slots` requests of up to `max_length` tokens."""
        return SlotCache(
            layers=len(self.layers),
            slots=slots,
            kv_heads=self.kv_heads,
            max_length=self.max_length,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def hidden(self, batch: RowBatch, cache: SlotCache) -> Tensor:
        """Run all rows, store their keys and values, return the last states [outputs, hidden]."""
        x = self.embed(batch.ids, batch.masks)
        rotations = self._rotations(batch.positions)
        if batch.run is not None:
            writers = cache.run_writers(*batch.run, rows=len(x))
        else:
            writers = cache.writers(batch.slots, batch.cells)
        readers = zip(*(cache.readers(g.slots, g.keys) for g in batch.groups), strict=True)
        for layer, write, past in zip(self.layers, writers, readers, strict=True):
            x += self._attention(layer, x, rotations, write, past, batch)
            x += self._mlp(layer, x, batch.masks)
        return self.final_norm(x[batch.outputs])

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [R, V] of states [R, hidden].

        [MASK]'s is -inf: it can never be generated.
        """
        logits = self._head(hidden)
        logits[:, self._mask_token_id] = -torch.inf
        return logits

    @property
    def changes_masks(self) -> bool:
        """Whether an adapter makes rows of [MASK] differ from others."""
        return self._mask_embedding is not None

    def scores_mask(self, visible: Tensor) -> Tensor:
        """Return what to add to the scores for `visible`, bool [S, 1, Q, keys]."""
        hidden = ~visible.repeat_interleave(self.heads // self.kv_heads, dim=-2)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, -torch.inf)

    def embed(self, ids: Tensor, masks: MaskRows | None) -> Tensor:
        """Return the first states [T, hidden] of tokens [T]; an adapter has [MASK]'s own."""
        x = self._embedding[ids]
        if masks is None or self._mask_embedding is None:
            return x
        if isinstance(masks, Gate):
            return torch.where(masks.values.bool(), self._mask_embedding, x)
        x[masks] = self._mask_embedding
        return x

    def _attention(
        self,
        layer: Layer,
        x: Tensor,
        rotations: Tensor,
        write: Write,
        past: tuple[tuple[Tensor, Tensor], ...],
        batch: RowBatch,
    ) -> Tensor:
        projected = layer.query_key_value(layer.attention_norm(x), batch.masks)
        heads = projected.view(len(x), self.heads + 2 * self.kv_heads, self.head_dim)
        rotated, values = torch.split(heads, [self.heads + self.kv_heads, self.kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated[:, : self.heads] = layer.query_norm(rotated[:, : self.heads])
            rotated[:, self.heads :] = layer.key_norm(rotated[:, self.heads :])
        turned = torch.bmm(rotated, rotations)
        query, keys = torch.split(turned, [self.heads, self.kv_heads], dim=1)
        write(keys, values)
        mixed = [
            self._attend(query[group.rows], group, *seen)
            for group, seen in zip(batch.groups, past, strict=True)
        ]
        return layer.output(mixed[0] if len(mixed) == 1 else torch.cat(mixed), batch.masks)

    def _attend(self, query: Tensor, group: AttentionGroup, keys: Tensor, values: Tensor) -> Tensor:
        """Attend for one group: query [rows, H, D] -> [rows, H * D]."""
        slots, width = len(keys), group.width
        if group.scatter is not None:
            padded = query.new_zeros(slots * width, self.heads, self.head_dim)
            query = padded.index_copy_(0, group.scatter, query)
        # The G query heads of one K/V head become query rows of it, so nothing is repeated.
        folded = query.reshape(slots, width, self.kv_heads, -1, self.head_dim).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            folded.reshape(slots, self.kv_heads, -1, self.head_dim), keys, values, group.mask
        )
        mixed = mixed.view(slots, self.kv_heads, width, -1, self.head_dim).transpose(1, 2)
        flat = mixed.reshape(slots * width, -1)
        return flat if group.scatter is None else flat[group.scatter]

    def _mlp(self, layer: Layer, x: Tensor, masks: MaskRows | None) -> Tensor:
        gate, up = layer.gate_up(layer.mlp_norm(x), masks).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up), masks)

    def _rotations(self, positions: Tensor) -> Tensor:
        """Return [T, D, D]: a head times its row's matrix is the head rotated.

        One product instead of x * cos + rotate_half(x) * sin; the matrices serve all layers.
        """
        cos, sin = self.cos[positions], self.sin[positions]
        return torch.diag_embed(cos) + torch.diag_embed(sin).roll(self.head_dim // 2, dims=1)

    def _rotary_table(self, rotary: nn.Module, length: int) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines [length, D] from the network's own module."""
        like = torch.empty(1, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            cos, sin = rotary(like, torch.arange(length, device=self.device)[None])
        sign = torch.ones(self.head_dim, dtype=self.dtype, device=self.device)
        sign[: self.head_dim // 2] = -1
        return cos[0], sin[0] * sign
