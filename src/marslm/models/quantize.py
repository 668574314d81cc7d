"""Narrower weights for decoding on a CPU: bfloat16, and int8 with rows quantised as they come.

Decoding a few rows reads every weight once, so half or a quarter of the bytes is up to half or a
quarter of the time. In int8 a row's result depends, bit for bit, on nothing but the row: its levels
follow from its own largest value, and sums of int8 products are exact in int32. So [MASK] rows
cannot change the others. In bfloat16 oneDNN may add in another order for another number of rows,
and results may differ by a rounding. Knows nothing about what the layers belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from marslm.errors import InputError
from marslm.models import compiled_product
from marslm.models.compiled_product import MOST_ROWS, Levels, Product, Update, can_update
from marslm.models.row_buckets import in_buckets

Quantize: TypeAlias = Literal["none", "bf16", "int8"]
"""How weights are stored for decoding; "none" keeps the dtype that was loaded."""

# Blocking is chosen for this many rows; the layout then serves any number of them.
_TYPICAL_ROWS = 16

_ROW_LEVELS = 127
"""Levels of a row to each side of zero."""

_SMALLEST_STEP = 1e-20
"""Keeps a row of zeros from being divided by zero; added to a row's step between levels."""

_SMALLEST = torch.tensor(_SMALLEST_STEP)


def weight_levels(exact: bool) -> int:
    """Return the levels of a weight to each side of zero: 7 bits where sums are not `exact`.

    Without VNNI instructions oneDNN lets the CPU add two products of an unsigned and a signed byte
    in 16 bits, saturating: 2 * 255 * 63 fits, 2 * 255 * 127 does not.
    """
    return 127 if exact else 63


def check_quantize(quantize: str, device: torch.device, dtype: torch.dtype | None) -> None:
    """Raise InputError for a kind that does not exist or cannot run on `device` from `dtype`."""
    kinds = get_args(Quantize)
    if quantize not in kinds:
        raise InputError(f"unknown quantize {quantize!r}: choose {', '.join(kinds)}")
    if quantize == "none":
        return
    if device.type != "cpu":
        raise InputError(
            f"quantize {quantize} is for a CPU, and this model goes to {device.type}: leave it "
            "out, or give device cpu"
        )
    if dtype not in (None, torch.float32):
        raise InputError(f"quantize {quantize} starts from float32, not {dtype}: leave dtype out")
    if not _runs(quantize):
        raise InputError(
            f"quantize {quantize} is not supported by this machine's CPU or torch build: choose "
            "none"
        )


def usable() -> list[Quantize]:
    """Return the kinds that this machine's CPU can decode with."""
    return [kind for kind in get_args(Quantize) if kind == "none" or _runs(kind)]


def _runs(quantize: str) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if quantize == "bf16":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return hasattr(torch.ops.onednn, "qlinear_pointwise")


def make_bf16_linear(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return x -> x @ weight.T + bias in bfloat16 with float32 sums; x and the result are float32.

    weight: [out, in]. The result is rounded to bfloat16 on the way.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), _TYPICAL_ROWS)
    narrow_bias = None if bias is None else bias.bfloat16()
    product = torch.ops.mkldnn._linear_pointwise.default

    def linear(x: Tensor) -> Tensor:
        narrow: Tensor = product(x.bfloat16(), packed, narrow_bias, "none", [], "")
        return narrow.float()

    return in_buckets(linear)


class Int8Linear:
    """x -> x @ weight.T + bias with int8 weights and rows; x and the result are float32.

    few: the compiled product of few rows, None if this machine or the shape has none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in], quantised symmetrically for each output."""
        narrow = _narrow(weight)
        self.few = Product(narrow, bias) if compiled_product.can_run(weight) else None
        # Without VNNI oneDNN is the slower one for any number of rows.
        takes_all = self.few is not None and not _has_vnni()
        self._many = self.few if takes_all else _onednn_product(narrow, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, in] to [rows, out], each row quantised by its own largest value."""
        product = self.few if len(x) <= MOST_ROWS and self.few else self._many
        assert product is not None
        return product(x)


class Int8Update:
    """(y, x) -> y += the low-rank update of x, in place, as `compiled_product.Update`.

    few: the compiled update of few rows, None if this machine or the shape has none.
    """

    def __init__(self, down: Tensor, up: Tensor, edges: ListOf[int]) -> None:
        """down: [parts * rank, in], up: [out, rank], edges: each part's first output."""
        ends = _narrow(down), _narrow(up)
        runs = can_update(down, up, edges)
        self.few = Update(*ends, edges) if runs else None
        self._many = None if runs and not _has_vnni() else _ManyRowsUpdate(*ends, edges)

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y [rows, out] what x [rows, in] gives."""
        update = self.few if len(x) <= MOST_ROWS and self.few else self._many or self.few
        assert update is not None
        update(y, x)


class _ManyRowsUpdate:
    """An update by oneDNN, with a product for each part."""

    def __init__(self, down: Levels, up: Levels, edges: ListOf[int]) -> None:
        """Pack the matrices."""
        rank, outputs = up.levels.shape[1], len(up.steps)
        self._down = _onednn_product(down, None)
        self._parts = []
        for index, columns in enumerate(map(slice, edges, [*edges[1:], outputs])):
            part = Levels(up.levels[columns].contiguous(), up.steps[columns].contiguous())
            ranks = slice(index * rank, (index + 1) * rank)
            self._parts.append((columns, ranks, _onednn_product(part, None)))

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y."""
        low = self._down(x)
        for columns, ranks, up in self._parts:
            y[:, columns] += up(low[:, ranks])


def _narrow(weight: Tensor) -> Levels:
    """Return a weight's levels and steps."""
    steps = weight.abs().amax(dim=1).clamp_(min=_SMALLEST_STEP)
    steps /= weight_levels(exact=_has_vnni() or compiled_product.can_run(weight))
    # Packing ignores strides, and fused weights lie transposed.
    levels = weight.div(steps[:, None]).round_().to(torch.int8).contiguous()
    return Levels(levels, steps)


def _has_vnni() -> bool:
    return bool(torch.cpu._is_vnni_supported())


def _onednn_product(weight: Levels, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    packed = torch.ops.onednn.qlinear_prepack(
        weight.levels, [_TYPICAL_ROWS, weight.levels.shape[1]]
    )
    steps, zeros = weight.steps, torch.zeros(len(weight.steps), dtype=torch.int64)
    product = torch.ops.onednn.qlinear_pointwise.default
    compiled = compiled_product.makes_bytes() and compiled_product.can_run(weight.levels)
    quantise = compiled_product.quantise_rows if compiled else _quantise_rows
    kind = torch.float32

    def linear(x: Tensor) -> Tensor:
        rows, row_steps = quantise(x)
        y: Tensor = product(rows, 1.0, 0, packed, steps, zeros, None, 1.0, 0, kind, "none", [], "")
        y.mul_(row_steps)
        return y if bias is None else y.add_(bias)

    return in_buckets(linear)


def _quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [R, in] as int8 levels [R, in] and steps [R, 1]."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    steps = torch.add(_SMALLEST, largest, alpha=1 / _ROW_LEVELS)
    return x.div(steps).round_().to(torch.int8), steps
