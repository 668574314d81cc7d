"""One forward for many requests: lays their rows out, runs the decoder, hands logits back.

Knows nothing about what the window entries mean, nor about which tokens are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marslm.core.masks import Tree, window_mask
from marslm.runtime.cache import SlotCache, whole_blocks
from marslm.runtime.decoder import AttentionGroup, Decoder, RowBatch
from marslm.runtime.layers import RowIndex
from marslm.runtime.window import Window

_WIDE = 16
"""Requests with more rows than this attend on their own, so that nobody is padded to a prompt."""


@dataclass(frozen=True)
class Work:
    """What one request feeds into a forward.

    first_cell: its cursor. pending: real tokens. window: what follows them. wanted: how many of the
    last rows need logits. Rows lie in consecutive cells from `first_cell` on.
    """

    slot: int
    first_cell: int
    pending: list[int]
    window: Window
    wanted: int

    @property
    def tokens(self) -> list[int]:
        """All rows, in order."""
        return [*self.pending, *self.window.tokens]

    @property
    def window_cell(self) -> int:
        """The cell of the first window entry, which is also its place in the text."""
        return self.first_cell + len(self.pending)

    @property
    def cells(self) -> range:
        """The cells that the rows fill."""
        return range(self.first_cell, self.window_cell + len(self.window))

    @property
    def positions(self) -> list[int]:
        """The rotary position of each row: its place in the text."""
        start = self.window_cell
        return [*range(self.first_cell, start), *(start + d for d in self.window.depths)]

    @property
    def seen(self) -> list[int]:
        """How many of the first cells each row sees."""
        seen = [cell + 1 for cell in self.cells]
        if self.window.bidirectional:
            seen[len(self.pending) :] = seen[-1:] * len(self.window)
        return seen

    def tree(self, place: int) -> Tree | None:
        """Return the window as a tree at `place` of a mask, None for a chain."""
        parents = self.window.parents
        return Tree(place, len(self.pending), self.window_cell, parents) if parents else None


class Runner:
    """Runs `Work` through a decoder and its cache.

    decoder: what computes.
    """

    def __init__(self, decoder: Decoder, cache: SlotCache, mask_token_id: int) -> None:
        """Keep the decoder and the cache; rows with `mask_token_id` are masks."""
        self.decoder = decoder
        self._cache = cache
        self._mask_token_id = mask_token_id

    def forward(self, works: list[Work]) -> list[Tensor]:
        """Return for each work the logits [wanted, V] of its last rows."""
        return [logits for logits, _ in self.forward_with_hidden(works)]

    def forward_with_hidden(self, works: list[Work]) -> list[tuple[Tensor, Tensor]]:
        """Return for each work logits [wanted, V] of its last rows and the states behind them."""
        order = sorted(
            range(len(works)), key=lambda i: (len(works[i].tokens) > _WIDE, works[i].slot)
        )
        ordered = [works[i] for i in order]
        hidden = self.decoder.hidden(self._lay_out(ordered), self._cache)
        wanted = [work.wanted for work in ordered]
        split = zip(
            torch.split(self.decoder.logits(hidden), wanted),
            torch.split(hidden, wanted),
            strict=True,
        )
        parts = dict(zip(order, split, strict=True))
        return [parts[i] for i in range(len(works))]

    def _lay_out(self, works: list[Work]) -> RowBatch:
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

    def _mask_rows(self, works: list[Work]) -> list[int]:
        """Return the rows of window entries that are [MASK]; in a prompt the id is only a token."""
        rows: list[int] = []
        end = 0
        for work in works:
            end += len(work.tokens)
            start = end - len(work.window)
            rows += [
                start + i for i, t in enumerate(work.window.tokens) if t == self._mask_token_id
            ]
        return rows

    def _groups(self, works: list[Work]) -> list[AttentionGroup]:
        """Put narrow works into one group and each wide one into its own."""
        narrow = [work for work in works if len(work.tokens) <= _WIDE]
        lists = [narrow] if narrow else []
        lists += [[work] for work in works if len(work.tokens) > _WIDE]
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
        trees = [tree for work in works if (tree := work.tree(work.slot - slots.start))]
        full = rows == seen.numel()
        return AttentionGroup(
            rows=slice(first_row, first_row + rows),
            slots=slots,
            width=width,
            keys=keys,
            mask=None if sees_all else self._scores_mask(seen, keys, trees),
            scatter=None if full else torch.tensor(scatter, device=self.decoder.device),
        )

    def _scores_mask(self, seen: Tensor, keys: int, trees: list[Tree]) -> Tensor:
        decoder = self.decoder
        group_size = decoder.heads // decoder.kv_heads
        visible = window_mask(seen.to(decoder.device), keys, trees)
        hidden = ~visible.repeat_interleave(group_size, dim=-2)
        mask = torch.zeros(hidden.shape, dtype=decoder.dtype, device=decoder.device)
        return mask.masked_fill_(hidden, -torch.inf)


def _output_rows(works: list[Work]) -> list[int]:
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
