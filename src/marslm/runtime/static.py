"""Forwards in a few fixed shapes, so that a GPU can replay them instead of being told each step.

Launching a decoder's operations one by one takes a GPU's host longer than the GPU needs for them.
A step of narrow requests is therefore laid into the smallest `Bucket` that holds it: the numbers
that tell one step from another are copied into a buffer, and everything else is computed from that
buffer in shapes that the bucket fixes. What repeats a computation is a `Capture`: `eager` calls it
again, `graphs.CudaGraphs` replays a recording. The results are those of the runner's ragged layout.
Knows nothing about what the window entries mean.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from marslm.core.masks import bit_mask
from marslm.runtime.cache import SlotCache, whole_blocks
from marslm.runtime.decoder import AttentionGroup, Decoder, RowBatch
from marslm.runtime.layers import Gate
from marslm.runtime.work import NARROW, Work

Compute: TypeAlias = Callable[[], Tensor]
"""A computation over fixed buffers."""

Capture: TypeAlias = Callable[[Compute], Compute]
"""Returns what repeats a computation on what its buffers hold by then, into the same result."""


def eager(compute: Compute) -> Compute:
    """Repeat a computation by calling it: for tests, and to compare with."""
    return compute


@dataclass(frozen=True)
class Bucket:
    """The shapes of one forward; all but the last caps are powers of two, so there are few.

    rows: of the linear layers. slots, width: attention computes `width` rows for each of the first
    `slots` slots. keys: cells that attention reads. masks: whether an adapter changes some rows.
    """

    rows: int
    slots: int
    width: int
    keys: int
    masks: bool

    @property
    def places(self) -> int:
        """Rows of attention. If there are as many rows, each is in its place, padding too."""
        return self.slots * self.width


def bucket_for(works: ListOf[Work], cache: SlotCache, *, masks: bool) -> Bucket | None:
    """Return the smallest bucket that holds the works, None if there is none.

    Wide works have none, nor has a step that writes to a slot's last cell, which is padding's.
    """
    width = max(len(work.tokens) for work in works)
    end = max(work.cells.stop for work in works)
    if width > NARROW or end >= cache.cells:
        return None
    slots = min(_power_of_two(1 + max(work.slot for work in works)), cache.slots)
    width = _power_of_two(width)
    rows = min(_power_of_two(sum(len(work.tokens) for work in works)), slots * width)
    keys = min(_power_of_two(whole_blocks(end)), cache.cells)
    return Bucket(rows, slots, width, keys, masks)


_COLUMNS = 7
"""Numbers of a row: which row is the output of this number, then its id, slot, cell and position,
whether it is a mask, and its place in attention."""


class StaticForward:
    """Runs narrow works in buckets; `capture` is asked once for each bucket, when it is needed.

    captured: whether the last forward was the first of its bucket, which takes far longer.
    """

    def __init__(
        self, decoder: Decoder, cache: SlotCache, mask_token_id: int, capture: Capture = eager
    ) -> None:
        """Window entries that are `mask_token_id` are masks."""
        self._decoder = decoder
        self._cache = cache
        self._mask_token_id = mask_token_id
        self._capture = capture
        self._steps: dict[Bucket, _Step] = {}
        self.captured = False

    @property
    def buckets(self) -> ListOf[Bucket]:
        """Those that were needed so far."""
        return list(self._steps)

    @torch.inference_mode()
    def hidden(self, works: ListOf[Work]) -> Tensor | None:
        """Return the last states [outputs, hidden] of the works in turn, None if none fits."""
        masks = self._decoder.changes_masks and any(
            work.mask_rows(self._mask_token_id) for work in works
        )
        bucket = bucket_for(works, self._cache, masks=masks)
        self.captured = bucket is not None and bucket not in self._steps
        if bucket is None:
            return None
        if self.captured:
            self._steps[bucket] = _Step(bucket, self._decoder, self._cache, self._capture)
        outputs = sum(work.wanted for work in works)
        numbers = _numbers(works, bucket, self._cache.cells - 1, self._mask_token_id)
        return self._steps[bucket].run(numbers, outputs)


class _Step:
    """The buffer of one bucket and the forward that reads it."""

    def __init__(
        self, bucket: Bucket, decoder: Decoder, cache: SlotCache, capture: Capture
    ) -> None:
        self._bucket = bucket
        self._decoder = decoder
        self._cache = cache
        self._capture = capture
        self._replay: Compute | None = None
        size = _COLUMNS * bucket.rows + bucket.places + bucket.slots
        self._buffer = torch.zeros(size, dtype=torch.int64, device=decoder.device)

    def run(self, numbers: list[int], outputs: int) -> Tensor:
        """Return a copy of the first `outputs` output rows' states."""
        self._buffer.copy_(torch.tensor(numbers), non_blocking=True)
        if self._replay is None:
            # Only now, with a step's numbers: a recording begins with real forwards, and repeating
            # this step writes the same keys and values to the same cells.
            self._replay = self._capture(self._compute)
        rows = self._buffer[: self._bucket.rows][:outputs]
        return self._replay()[rows]

    def _compute(self) -> Tensor:
        bucket = self._bucket
        table, sees, first = torch.split(
            self._buffer, [_COLUMNS * bucket.rows, bucket.places, bucket.slots]
        )
        _, ids, slots, cells, positions, gates, places = table.view(_COLUMNS, bucket.rows).unbind()
        visible = bit_mask(first, sees.view(bucket.slots, bucket.width), bucket.keys)
        group = AttentionGroup(
            rows=slice(0, bucket.rows),
            slots=slice(0, bucket.slots),
            width=bucket.width,
            keys=bucket.keys,
            mask=self._decoder.scores_mask(visible),
            scatter=None if bucket.rows == bucket.places else places,
        )
        batch = RowBatch(
            ids=ids,
            slots=slots,
            cells=cells,
            positions=positions,
            run=None,
            groups=[group],
            masks=Gate(gates[:, None].to(self._decoder.dtype)) if bucket.masks else None,
            outputs=slice(0, bucket.rows),
        )
        return self._decoder.hidden(batch, self._cache)


def _numbers(works: ListOf[Work], bucket: Bucket, spare_cell: int, mask_token_id: int) -> list[int]:
    """Return what a bucket's buffer holds for these works.

    Padding is token 0 at position 0 of slot 0, written to `spare_cell`; no row stands behind a
    slot's last cell, so nobody reads it. Places of padding see a cell that is finite.
    """
    outputs, ids, slots, cells, positions, gates, places = columns = [
        [filler] * bucket.rows for filler in (0, 0, 0, spare_cell, 0, 0, _idle_place(works, bucket))
    ]
    sees, first = [1] * bucket.places, [0] * bucket.slots
    row = output = 0
    for work in works:
        place, count = work.slot * bucket.width, len(work.tokens)
        start = place if bucket.rows == bucket.places else row
        here, there = slice(start, start + count), slice(place, place + count)
        ids[here], cells[here], positions[here] = work.tokens, work.cells, work.positions
        slots[here], places[here] = [work.slot] * count, range(place, place + count)
        sees[there], first[work.slot] = work.sees, work.first_cell
        for mask in work.mask_rows(mask_token_id):
            gates[start + mask] = 1
        outputs[output : output + work.wanted] = range(here.stop - work.wanted, here.stop)
        row, output = row + count, output + work.wanted
    return [*(number for column in columns for number in column), *sees, *first]


def _idle_place(works: ListOf[Work], bucket: Bucket) -> int:
    """Return a place in attention that no row needs, 0 if there is none and so no padding."""
    taken = {work.slot: len(work.tokens) for work in works}
    rows = ((slot, row) for slot in range(bucket.slots) for row in range(bucket.width))
    return next((s * bucket.width + r for s, r in rows if r >= taken.get(s, 0)), 0)


def _power_of_two(number: int) -> int:
    """Return `number` rounded up to a power of two."""
    return 1 << (number - 1).bit_length()
