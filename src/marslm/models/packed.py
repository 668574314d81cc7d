"""Linear layers for inference: oneDNN-packed weights where they help, plain ones elsewhere.

On a CPU a plain float32 linear costs 2 to 2.5 times more at 4 rows than at 1; with packed weights
the cost is nearly flat, which is what makes several tokens per forward nearly free. Knows nothing
about what the layers belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""x [rows, in] -> [rows, out]."""

# Blocking is chosen for this many rows; the layout then serves any number of them.
_TYPICAL_ROWS = 4


def can_pack(weight: Tensor) -> bool:
    """Return whether this machine's torch packs weights of this kind: float32 on a oneDNN CPU."""
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def make_linear(weight: Tensor, bias: Tensor | None = None, *, pack: bool) -> Linear:
    """Return x -> x @ weight.T + bias; `weight` [out, in] is packed if `pack` and if possible."""
    if not (pack and can_pack(weight)):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
    linear = torch.ops.mkldnn._linear_pointwise
    return lambda x: linear(x, packed, bias, "none", [], "")
