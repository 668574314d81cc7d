"""One forward for many requests: lays their rows out, runs the decoder, hands logits back.

Knows nothing about what the window entries mean, nor about which tokens are kept.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import torch
from torch import Tensor

from marslm.core.masks import window_mask
from marslm.runtime.cache import SlotCache, whole_blocks
from marslm.runtime.decoder import AttentionGroup, Decoder, RowBatch
from marslm.runtime.graphs import graphed_forward
from marslm.runtime.layers import RowIndex
from marslm.runtime.work import NARROW, Work


class Runner:
    """Runs `Work` through a decoder and its cache.

    decoder: what computes. static: runs steps of narrow works in fixed shapes, on a GPU; without
    it, and for all other steps, rows are laid out as they come.
    """

    def __init__(self, decoder: Decoder, cache: SlotCache, mask_token_id: int) -> None:
        """Keep the decoder and the cache; rows with `mask_token_id` are masks."""
        self.decoder = decoder
        self._cache = cache
        self._mask_token_id = mask_token_id
        self.static = graphed_forward(decoder, cache, mask_token_id, self._ragged)

    @property
    def recorded(self) -> bool:
        """Whether the last forward was recorded first, so that its time says nothing of others."""
        return self.static is not None and self.static.captured

    def forward(self, works: list[Work]) -> list[Tensor]:
        """Return for each work the logits [wanted, V] of its last rows."""
        return [logits for logits, _ in self.forward_with_hidden(works)]

    def forward_with_hidden(self, works: list[Work]) -> list[tuple[Tensor, Tensor]]:
        """Return for each work logits [wanted, V] of its last rows and the states behind them."""
        order = sorted(
            range(len(works)), key=lambda i: (len(works[i].tokens) > NARROW, works[i].slot)
        )
        ordered = [works[i] for i in order]
        hidden = None if self.static is None else self.static.hidden(ordered)
        if hidden is None:
            hidden = self._ragged(ordered)
        wanted = [work.wanted for work in ordered]
        split = zip(
            torch.split(self.decoder.logits(hidden), wanted),
            torch.split(hidden, wanted),
            strict=True,
        )
        parts = dict(zip(order, split, strict=True))
        return [parts[i] for i in range(len(works))]

    def _ragged(self, works: ListOf[Work]) -> Tensor:
        return self.decoder.hidden(self._lay_out(works), self._cache)

    def _lay_out(self, works: ListOf[Work]) -> RowBatch:
        ids = torch.tensor([token for work in works for token in work.tokens])
        slots = torch.tensor([work.slot for work in works for _ in work.tokens])
        device = self.decoder.device
        cells = torch.tensor([cell for work in works for cell in work.cells], device=device)
        in_text_order = all(work.window.parents is None for work in works)
        positions = [] if in_text_order else [p for work in works for p in work.positions]
        masks = self._mask_rows(works)
        return RowBatch(
            ids=ids.to(device),
            slots=slots.to(device),
            cells=cells,
            positions=cells if in_text_order else torch.tensor(positions, device=device),
            run=(works[0].slot, works[0].first_cell) if len(works) == 1 else None,
            groups=self._groups(works),
            masks=_as_index(masks, device) if masks else None,
            outputs=_as_index(_output_rows(works), device),
        )

    def _mask_rows(self, works: ListOf[Work]) -> list[int]:
        rows: list[int] = []
        start = 0
        for work in works:
            rows += [start + row for row in work.mask_rows(self._mask_token_id)]
            start += len(work.tokens)
        return rows

    def _groups(self, works: ListOf[Work]) -> list[AttentionGroup]:
        """Put narrow works into one group and each wide one into its own."""
        narrow = [work for work in works if len(work.tokens) <= NARROW]
        lists = [narrow] if narrow else []
        lists += [[work] for work in works if len(work.tokens) > NARROW]
        groups, row = [], 0
        for members in lists:
            group = self._group(members, row)
            groups.append(group)
            row = group.rows.stop
        return groups

    def _group(self, works: list[Work], first_row: int) -> AttentionGroup:
        rows = sum(len(work.tokens) for work in works)
        slots = slice(works[0].slot, works[-1].slot + 1)
        width = max(len(work.tokens) for work in works)
        end = max(work.first_cell + len(work.tokens) for work in works)
        keys = whole_blocks(end)
        sees_all = rows == 1 and end == keys
        # Padding and idle slots see cell 0, which is finite: their result is thrown away.
        seen = torch.ones(slots.stop - slots.start, width, dtype=torch.int64)
        scatter: list[int] = []
        for work in works:
            place, count = work.slot - slots.start, len(work.tokens)
            seen[place, :count] = torch.tensor(work.seen)
            scatter += range(place * width, place * width + count)
        mask = None
        if not sees_all:
            trees = [tree for work in works if (tree := work.tree(work.slot - slots.start))]
            visible = window_mask(seen.to(self.decoder.device), keys, trees)
            mask = self.decoder.scores_mask(visible)
        full = rows == seen.numel()
        return AttentionGroup(
            rows=slice(first_row, first_row + rows),
            slots=slots,
            width=width,
            keys=keys,
            mask=mask,
            scatter=None if full else torch.tensor(scatter, device=self.decoder.device),
        )


def _output_rows(works: ListOf[Work]) -> list[int]:
    rows: list[int] = []
    end = 0
    for work in works:
        end += len(work.tokens)
        rows += range(end - work.wanted, end)
    return rows


def _as_index(rows: list[int], device: torch.device) -> RowIndex:
    """Return rows that follow one another as a slice, which gives views instead of copies."""
    if not rows:
        return slice(0, 0)
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
