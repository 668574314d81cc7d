"""Keys and values of running requests: one slot each, one cursor each.

A cell past a request's cursor holds garbage by contract and is overwritten before it can be read,
so rolling back is moving the cursor and no request waits for another. Garbage stays finite, because
a masked NaN is still a NaN. Knows nothing about requests or attention.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

Write: TypeAlias = Callable[[Tensor, Tensor], None]
"""Stores keys and values, each [rows, kv_heads, head_dim]."""

_BLOCK = 128
"""Attention reads whole blocks of so many cells. In what order a row's products are added depends
on how many cells are read; so nearly every row gets the same bits whatever follows it in a step."""


def whole_blocks(cells: int) -> int:
    """Return `cells` rounded up to whole blocks."""
    return -(-cells // _BLOCK) * _BLOCK


class SlotCache:
    """Fixed memory for `slots` requests of at most `max_length` tokens.

    One tensor [layers, slots, 2 * kv_heads, cells, head_dim], keys before values in the third axis:
    all layers' views are then made at once, where one view costs as much as a small product.
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
        shape = (layers, slots, 2 * kv_heads, whole_blocks(max_length), head_dim)
        self._cells = torch.zeros(shape, dtype=dtype, device=device)
        self.kv_heads = kv_heads
        self.slots = slots
        self.cells: int = self._cells.shape[3]
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

    def copy(self, source: int, target: int, cells: int) -> None:
        """Copy the first `cells` cells of one slot to another."""
        if source != target and cells:
            self._cells[:, target, :, :cells] = self._cells[:, source, :, :cells]

    @property
    def places(self) -> list[int]:
        """The address of each layer's memory, for compiled code."""
        return [layer.data_ptr() for layer in self._cells.unbind()]

    def readers(self, slots: slice, length: int) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values as views [slots, kv_heads, length, head_dim]."""
        keys, values = torch.split(self._cells[:, slots, :, :length], self.kv_heads, dim=2)
        return list(zip(keys.unbind(), values.unbind(), strict=True))

    def writers(self, slots: Tensor, cells: Tensor) -> list[Write]:
        """Return each layer's function that stores rows at (slots[row], cells[row])."""
        return [partial(_scatter, layer, slots, cells) for layer in self._cells.unbind()]

    def run_writers(self, slot: int, first_cell: int, rows: int) -> list[Write]:
        """Return `writers` for rows in consecutive cells of one slot, where a copy is enough."""
        run = self._cells[:, slot, :, first_cell : first_cell + rows].transpose(1, 2)
        keys, values = torch.split(run, self.kv_heads, dim=2)
        return [partial(_copy, k, v) for k, v in zip(keys.unbind(), values.unbind(), strict=True)]


def _scatter(layer: Tensor, slots: Tensor, cells: Tensor, keys: Tensor, values: Tensor) -> None:
    layer[slots, :, cells] = torch.cat((keys, values), dim=1)


def _copy(key_cells: Tensor, value_cells: Tensor, keys: Tensor, values: Tensor) -> None:
    key_cells.copy_(keys)
    value_cells.copy_(values)
