"""What `compiled_step.c` is given: its structures, filled from a decoder and from a step's works.

Knows nothing about how they are run.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from ctypes import (
    POINTER,
    Array,
    Structure,
    c_float,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
    sizeof,
)
from typing import ClassVar

from torch import Tensor

from marslm.models.compiled_product import (
    BLOCK,
    LowRankUpdate,
    Matrix,
    Product,
    Rows,
    Update,
)
from marslm.models.packed import Linear
from marslm.models.quantize import Int8Linear, Int8Update
from marslm.runtime.cache import SlotCache
from marslm.runtime.decoder import Decoder
from marslm.runtime.layers import Layer, MaskUpdate, Projection, RMSNorm
from marslm.runtime.work import Work

SPAN = 64
"""Cells that attention reads together."""

TREE_BITS = 8 * sizeof(c_uint64)
"""So many entries of a tree has a row a bit for."""


class CProjection(Structure):
    """Where a projection's matrices lie; `update` has no parts without an adapter."""

    _fields_: ClassVar = [("base", Matrix), ("update", LowRankUpdate)]


class CLayer(Structure):
    """Where a layer's weights and its keys and values lie."""

    _fields_: ClassVar = [
        *((f"{name}_norm", c_void_p) for name in ("attention", "query", "key", "mlp")),
        *((name, CProjection) for name in ("query_key_value", "output", "gate_up", "down")),
        ("cells", c_void_p),
    ]


class CModel(Structure):
    """All layers, the rotary tables and the sizes that layers share."""

    _fields_: ClassVar = [
        ("layers", POINTER(CLayer)),
        *((name, c_void_p) for name in ("cos", "sin")),
        *((name, c_int64) for name in ("count", "hidden", "inner")),
        *((name, c_int64) for name in ("heads", "kv_heads", "dim", "cells")),
        ("epsilon", c_float),
    ]


class CStep(Structure):
    """A step's rows and the room that it computes in."""

    _fields_: ClassVar = [
        *((name, POINTER(c_int32)) for name in ("slots", "positions", "cells", "seen", "masks")),
        ("bits", POINTER(c_uint64)),
        *((name, c_void_p) for name in ("x", "wide", "narrow", "low", "parts")),
        *((name, Rows) for name in ("inputs", "mask_inputs")),
        *((name, c_int64) for name in ("rows", "mask_rows", "spans")),
    ]


def fits(decoder: Decoder) -> bool:
    """Return whether C takes this decoder: compiled products, and heads of whole blocks."""
    return decoder.head_dim % BLOCK == 0 and all(
        product_of(each.base) is not None
        and (each.update is None or _update_of(each.update) is not None)
        for layer in decoder.layers
        for each in (layer.query_key_value, layer.output, layer.gate_up, layer.down)
    )


def product_of(linear: Linear) -> Product | None:
    """Return the compiled product of few rows behind `linear`, None if there is none."""
    found = linear.few if isinstance(linear, Int8Linear) else linear
    return found if isinstance(found, Product) else None


def model_of(decoder: Decoder, cache: SlotCache) -> CModel:
    """Return where the weights of `decoder` and the cells of `cache` lie; both must live on."""
    layers = [_layer_of(*each) for each in zip(decoder.layers, cache.places, strict=True)]
    return CModel(
        layers=(CLayer * len(layers))(*layers),
        cos=decoder.cos.data_ptr(),
        sin=decoder.sin.data_ptr(),
        count=len(layers),
        hidden=layers[0].output.base.outputs,
        inner=layers[0].down.base.inputs,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        dim=decoder.head_dim,
        cells=cache.cells,
        epsilon=decoder.final_norm.epsilon,
    )


def step_of(works: ListOf[Work], x: Tensor, masks: ListOf[int]) -> CStep:
    """Return where the rows of `works` stand, without room; masks: rows that get the update."""
    seen = [each for work in works for each in _seen(work)]
    return CStep(
        slots=_integers(work.slot for work in works for _ in work.tokens),
        positions=_integers(each for work in works for each in work.positions),
        cells=_integers(each for work in works for each in work.cells),
        seen=_integers(seen),
        masks=_integers(masks),
        bits=(c_uint64 * len(x))(*(each for work in works for each in _bits(work))),
        x=x.data_ptr(),
        rows=len(x),
        mask_rows=len(masks),
        spans=-(-(max(seen) + TREE_BITS) // SPAN),
    )


def _seen(work: Work) -> list[int]:
    """Return how many cells each row sees that no bit names."""
    if work.window.parents is None:
        return work.seen
    pending = len(work.pending)
    return work.seen[:pending] + [work.window_cell] * len(work.window)


def _bits(work: Work) -> list[int]:
    """Return which entries of a tree each row sees, entry j as bit j."""
    pending = len(work.pending)
    if work.window.parents is None:
        return [0] * len(work.tokens)
    return [0] * pending + [sees >> pending for sees in work.sees[pending:]]


def _integers(numbers: Iterable[int]) -> Array[c_int32]:
    found = list(numbers)
    return (c_int32 * len(found))(*found)


def _layer_of(layer: Layer, cells: int) -> CLayer:
    return CLayer(
        attention_norm=_norm_of(layer.attention_norm),
        query_norm=_norm_of(layer.query_norm),
        key_norm=_norm_of(layer.key_norm),
        mlp_norm=_norm_of(layer.mlp_norm),
        query_key_value=_projection_of(layer.query_key_value),
        output=_projection_of(layer.output),
        gate_up=_projection_of(layer.gate_up),
        down=_projection_of(layer.down),
        cells=cells,
    )


def _norm_of(norm: RMSNorm | None) -> int | None:
    return None if norm is None else norm.weight.data_ptr()


def _projection_of(projection: Projection) -> CProjection:
    base = product_of(projection.base)
    assert base is not None
    found = CProjection(base.weight.matrix)
    if projection.update is not None:
        update = _update_of(projection.update)
        assert update is not None
        found.update = update.structure
    return found


def _update_of(update: MaskUpdate) -> Update | None:
    found = update.few if isinstance(update, Int8Update) else update
    return found if isinstance(found, Update) else None
