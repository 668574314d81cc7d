"""A mask-only adapter inside vLLM's layers: the low-rank update reaches the rows of masks alone.

Each linear layer's method is wrapped: y becomes y + up(down(x)) where the row's token is [MASK],
and stays y bit for bit elsewhere. The gate is one buffer, filled from the ids before each forward,
so graphs and compilation see fixed shapes. Knows nothing about drafts; reads vLLM's layers by their
attributes and imports nothing from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marslm.errors import InputError
from marslm.models.adapter import Adapter, LowRank

METHODS = ("UnquantizedLinearMethod", "Fp8PtpcOnlineLinearMethod", "CompressedTensorsW8A8Fp8")
"""How layers may compute, by vLLM's names: with plain weights, or in the FP8 that was tried, whose
inputs are scaled row by row, so that rows of masks cannot change what others are."""


def install(model: nn.Module, adapter: Adapter, rows: int) -> None:
    """Put the adapter into a loaded vLLM model; `rows` is the longest forward."""
    device = next(model.parameters()).device
    gate = torch.zeros(rows, 1, dtype=torch.bool, device=device)
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    left = dict(adapter.updates)
    for name, layer in model.named_modules():
        if not hasattr(layer, "quant_method") or not hasattr(layer, "input_size_per_partition"):
            continue
        parent, _, own = name.rpartition(".")
        parts = [f"{parent}.{part}" for part in fused.get(own, [own])]
        updates = [left.pop(part, None) for part in parts]
        if any(updates):
            _wrap(layer, stacked(updates, layer), gate)
    if left:
        raise InputError(
            f"this model has no layer for the adapter's {next(iter(left))}; serve the model that "
            "it was trained on, without pipeline parallelism"
        )
    _set_mask_embedding(model, adapter)
    mask = adapter.record.mask_token_id

    def mark_masks(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        torch.eq(ids[:, None], mask, out=gate[: len(ids)])

    model.register_forward_pre_hook(mark_masks, with_kwargs=True)


def stacked(updates: list[LowRank | None], layer: Any) -> LowRank:
    """Return this rank's share of the updates that one fused layer needs, as one.

    Each part's update stands in its own rows and its own ranks. A layer that splits its input over
    tensor-parallel ranks gets its columns; one that splits its output gets its rows.
    """
    sizes = _output_slices(layer)
    dtype = layer.params_dtype
    downs, ups = [], []
    for update, part in zip(updates, sizes, strict=True):
        rank = 0 if update is None else len(update.down)
        up = torch.zeros(part.stop - part.start, rank) if update is None else update.up[part]
        ups.append(up)
        if update is not None:
            downs.append(update.down[:, _input_slice(layer)])
    return LowRank(torch.cat(downs).to(dtype), torch.block_diag(*ups).to(dtype))  # type: ignore[no-untyped-call]


def _output_slices(layer: Any) -> list[slice]:
    """Return which output rows of each part are this rank's."""
    if not hasattr(layer, "output_sizes"):
        return [_share(layer.output_size, layer.output_size_per_partition, layer.tp_rank)]
    ranks = [layer.tp_rank] * len(layer.output_sizes)
    if hasattr(layer, "num_kv_head_replicas"):
        # More ranks than key/value heads: several ranks hold the same head.
        ranks[1:] = [layer.tp_rank // layer.num_kv_head_replicas] * 2
    return [
        _share(size, size // layer.tp_size, rank)
        for size, rank in zip(layer.output_sizes, ranks, strict=True)
    ]


def _input_slice(layer: Any) -> slice:
    return _share(layer.input_size, layer.input_size_per_partition, layer.tp_rank)


def _share(whole: int, part: int, rank: int) -> slice:
    return slice(0, whole) if part == whole else slice(rank * part, (rank + 1) * part)


def _wrap(layer: Any, update: LowRank, gate: Tensor) -> None:
    method = type(getattr(layer, "scheme", layer.quant_method)).__name__
    if method not in METHODS:
        raise InputError(
            f"a mask-only adapter was not tried on weights quantised like this model's ({method}); "
            "serve it unquantised or in FP8 (--quantization fp8_per_channel), or quantise a "
            "checkpoint of `marslm export --merged`"
        )
    device = gate.device
    layer.register_buffer("mars_down", update.down.to(device).T.contiguous(), persistent=False)
    layer.register_buffer("mars_up", update.up.to(device).T.contiguous(), persistent=False)
    layer.register_buffer("mars_gate", gate, persistent=False)
    layer.requires_unquantized_input = True  # else a norm may hand it what it quantised already
    layer.quant_method = GatedMethod(layer.quant_method)


class GatedMethod:
    """A layer's own method, and the update on rows of masks after it."""

    def __init__(self, inner: Any) -> None:
        """Wrap `inner`, vLLM's method of this layer."""
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the layer's output [N, out] for x [N, in]."""
        y: Tensor = self._inner.apply(layer, x, bias)
        return gated(y, x, layer.mars_gate[: x.shape[0]], layer.mars_down, layer.mars_up)


def gated(y: Tensor, x: Tensor, gate: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """Return y [N, out] with x [N, in] @ down @ up added in the rows that the gate [N, 1] marks.

    Selected, not multiplied by 0, so that the other rows keep every bit.
    """
    return torch.where(gate, y + x @ down @ up, y)


def _set_mask_embedding(model: Any, adapter: Adapter) -> None:
    """Write [MASK]'s embedding; its row of a tied output head is never read (`exclude_mask`)."""
    embedding = model.get_submodule("model.embed_tokens")
    shard = embedding.shard_indices
    row = adapter.record.mask_token_id - shard.org_vocab_start_index
    if 0 <= row < shard.org_vocab_end_index - shard.org_vocab_start_index:
        embedding.weight.data[row] = adapter.mask_embedding.to(embedding.weight)


def exclude_mask(model: Any, mask_token_id: int) -> None:
    """Make [MASK] impossible: its logit is -inf in every row that the model computes."""
    compute = model.compute_logits

    def compute_logits(*args: Any, **kwargs: Any) -> Tensor | None:
        logits: Tensor | None = compute(*args, **kwargs)
        if logits is not None:  # None on ranks that do not sample
            logits[:, mask_token_id] = -torch.inf
        return logits

    model.compute_logits = compute_logits
