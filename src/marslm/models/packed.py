"""Linear layers for inference: compiled, oneDNN-packed or narrower weights, plain ones elsewhere.

On a CPU a plain float32 linear costs about twice as much at 4 rows as at 1; with packed weights the
cost is nearly flat, which is what makes several tokens per forward cheap. Compiled products also
read weights at the memory's full speed, and give a row the same bits whatever stands beside it.
Knows nothing about what the layers belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from marslm.models import compiled_product
from marslm.models.compiled_product import Product
from marslm.models.quantize import Int8Linear, Quantize, make_bf16_linear
from marslm.models.row_buckets import in_buckets

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""x [rows, in] -> [rows, out]."""

# Blocking is chosen for this many rows; the layout then serves any number of them. With SmolLM2's
# shapes, 64 beats 4 and 16 even at 1 to 9 rows.
_TYPICAL_ROWS = 64

# Up to so many rows a plain product is faster than a packed one: it then reads weights at the full
# memory bandwidth, where a packed one reaches two thirds of it. A rule and not a measurement at
# start-up, so that every run computes the same numbers.
_PLAIN_ROWS = 2 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 1


def can_pack(weight: Tensor) -> bool:
    """Return whether this machine's torch packs weights of this kind: float32 on a oneDNN CPU."""
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def make_linear(
    weight: Tensor, bias: Tensor | None = None, *, pack: bool, quantize: Quantize = "none"
) -> Linear:
    """Return x -> x @ weight.T + bias for `weight` [out, in].

    It is compiled or packed if `pack` and if possible; narrower weights always are.
    """
    if quantize == "bf16":
        return make_bf16_linear(weight, bias)
    if quantize == "int8":
        return Int8Linear(weight, bias)
    plain = _make_plain(weight, bias)
    if not (pack and can_pack(weight)):
        return plain
    if compiled_product.can_run(weight):
        return Product(weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
    product = torch.ops.mkldnn._linear_pointwise.default
    packed_linear = in_buckets(lambda x: product(x, packed, bias, "none", [], ""))
    return lambda x: plain(x) if len(x) <= _PLAIN_ROWS else packed_linear(x)


def _make_plain(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return `F.linear` without its detours, which count when a row is all there is."""
    transposed = weight.t()
    if bias is None:
        return lambda x: torch.mm(x, transposed)
    return lambda x: torch.addmm(bias, x, transposed)
