"""Keys and values of running requests: one slot each, one cursor each.

A cell past a request's cursor holds garbage by contract and is overwritten before it can be read,
so rolling back is moving the cursor and no request waits for another. Garbage stays finite, because
a masked NaN is still a NaN. Knows nothing about requests or attention.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SlotCache:
    """Fixed memory for `slots` requests of at most `max_length` tokens.

    layers: per layer [slots, 2 * kv_heads, max_length, head_dim], keys before values in the second
    axis so that one write stores both.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        max_length: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate zeroed memory."""
        shape = (slots, 2 * kv_heads, max_length, head_dim)
        self.layers = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.kv_heads = kv_heads
        self.max_length = max_length
        self._free = list(range(slots))

    @property
    def free_slots(self) -> int:
        """How many slots no request holds."""
        return len(self._free)

    def take_slot(self) -> int:
        """Return the lowest free slot: running requests stay close together."""
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def release_slot(self, slot: int) -> None:
        """Give a slot back; its cells become garbage."""
        assert slot not in self._free
        self._free.append(slot)

    def write(self, layer: int, keys_values: Tensor, slots: Tensor, cells: Tensor) -> None:
        """Store `keys_values` [rows, 2 * kv_heads, head_dim] at (slots[row], cells[row])."""
        self.layers[layer][slots, :, cells] = keys_values

    def read(self, layer: int, slots: slice, length: int) -> tuple[Tensor, Tensor]:
        """Return views of keys and values, each [slots, kv_heads, length, head_dim]."""
        both = self.layers[layer][slots].narrow(2, 0, length)
        return both.narrow(1, 0, self.kv_heads), both.narrow(1, self.kv_heads, self.kv_heads)
