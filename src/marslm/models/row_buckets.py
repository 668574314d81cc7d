"""Products with a few different numbers of rows only.

oneDNN compiles a product for every number of rows that it meets, which takes milliseconds, and
keeps the last thousand of them at half a megabyte each. Prompts have all lengths, so their rows are
padded. Knows nothing about weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

_EXACT, _FINE, _MANY, _COARSE = 16, 8, 128, 32
"""Up to _EXACT rows come as they are, up to _MANY in multiples of _FINE, then of _COARSE."""


def bucket(rows: int) -> int:
    """Return the number of rows that `rows` are padded to."""
    if rows <= _EXACT:
        return rows
    step = _FINE if rows <= _MANY else _COARSE
    return -(-rows // step) * step


def in_buckets(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return `product`, a function of rows [R, in] to [R, out], that sees few different R."""

    def padded(x: Tensor) -> Tensor:
        missing = bucket(len(x)) - len(x)
        return product(F.pad(x, (0, 0, 0, missing)))[: len(x)] if missing else product(x)

    return padded
