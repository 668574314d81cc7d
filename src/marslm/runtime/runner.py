"""One forward for many requests: lays their rows out, runs the decoder, hands logits back.

Knows nothing about what the window entries mean, nor about which tokens are kept.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import torch
from torch import Tensor

from marslm.core.masks import Tree, window_mask
from marslm.runtime.cache import SlotCache, whole_blocks
from marslm.runtime.compiled_step import compiled_step
from marslm.runtime.decoder import AttentionGroup, Decoder, RowBatch
from marslm.runtime.graphs import graphed_forward
from marslm.runtime.layers import as_index
from marslm.runtime.work import NARROW, Work, mask_rows, output_rows

_PIECE = 128
"""Rows of a long text that attend together."""


class Runner:
    """Runs `Work` through a decoder and its cache.

    decoder: what computes. static: runs steps of narrow works in fixed shapes, on a GPU. compiled:
    runs steps in C, on a CPU. Without them, and for steps that they leave, rows are laid out as
    they come.
    """

    def __init__(self, decoder: Decoder, cache: SlotCache, mask_token_id: int) -> None:
        """Keep the decoder and the cache; rows with `mask_token_id` are masks."""
        self.decoder = decoder
        self._cache = cache
        self._mask_token_id = mask_token_id
        self.static = graphed_forward(decoder, cache, mask_token_id, self._ragged)
        self.compiled = compiled_step(decoder, cache, mask_token_id)

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
        hidden = self._hidden(ordered)
        wanted = [work.wanted for work in ordered]
        split = zip(
            torch.split(self.decoder.logits(hidden), wanted),
            torch.split(hidden, wanted),
            strict=True,
        )
        parts = dict(zip(order, split, strict=True))
        return [parts[i] for i in range(len(works))]

    def _hidden(self, works: ListOf[Work]) -> Tensor:
        for forward in (self.static, self.compiled):
            if forward is not None and (hidden := forward.hidden(works)) is not None:
                return hidden
        return self._ragged(works)

    def _ragged(self, works: ListOf[Work]) -> Tensor:
        return self.decoder.hidden(self._lay_out(works), self._cache)

    def _lay_out(self, works: ListOf[Work]) -> RowBatch:
        ids = torch.tensor([token for work in works for token in work.tokens])
        slots = torch.tensor([work.slot for work in works for _ in work.tokens])
        device = self.decoder.device
        cells = torch.tensor([cell for work in works for cell in work.cells], device=device)
        in_text_order = all(work.window.parents is None for work in works)
        positions = [] if in_text_order else [p for work in works for p in work.positions]
        masks = mask_rows(works, self._mask_token_id)
        return RowBatch(
            ids=ids.to(device),
            slots=slots.to(device),
            cells=cells,
            positions=cells if in_text_order else torch.tensor(positions, device=device),
            run=(works[0].slot, works[0].first_cell) if len(works) == 1 else None,
            groups=self._groups(works),
            masks=as_index(masks, device) if masks else None,
            outputs=as_index(output_rows(works), device),
        )

    def _groups(self, works: ListOf[Work]) -> list[AttentionGroup]:
        """Put narrow works into one group, and each wide one into groups of its own."""
        narrow = [work for work in works if len(work.tokens) <= NARROW]
        groups = [self._narrow_group(narrow)] if narrow else []
        row = sum(len(work.tokens) for work in narrow)
        for work in works[len(narrow) :]:
            groups += self._wide_groups(work, row)
            row += len(work.tokens)
        return groups

    def _narrow_group(self, works: list[Work]) -> AttentionGroup:
        rows = sum(len(work.tokens) for work in works)
        slots = slice(works[0].slot, works[-1].slot + 1)
        width = max(len(work.tokens) for work in works)
        # Padding and idle slots see cell 0, which is finite: their result is thrown away.
        seen = torch.ones(slots.stop - slots.start, width, dtype=torch.int64)
        scatter: list[int] = []
        for work in works:
            place, count = work.slot - slots.start, len(work.tokens)
            seen[place, :count] = torch.tensor(work.seen)
            scatter += range(place * width, place * width + count)
        trees = [tree for work in works if (tree := work.tree(work.slot - slots.start))]
        full = rows == seen.numel()
        places = None if full else torch.tensor(scatter, device=self.decoder.device)
        return self._group(slice(0, rows), slots, seen, trees, places)

    def _wide_groups(self, work: Work, first_row: int) -> list[AttentionGroup]:
        """Cut a text into pieces, so that none reads the cells that only later ones see."""
        tree, count = work.tree(0), len(work.tokens)
        piece = count if tree else _PIECE
        seen = torch.tensor(work.seen)[None]
        return [
            self._group(
                slice(first_row + start, first_row + min(start + piece, count)),
                slice(work.slot, work.slot + 1),
                seen[:, start : start + piece],
                [tree] if tree else [],
            )
            for start in range(0, count, piece)
        ]

    def _group(
        self,
        rows: slice,
        slots: slice,
        seen: Tensor,
        trees: list[Tree],
        scatter: Tensor | None = None,
    ) -> AttentionGroup:
        """Return a group whose rows see so many cells each, [slots, width], or as in `trees`."""
        keys = whole_blocks(int(seen.max()))
        mask = None
        if seen.numel() > 1 or int(seen) < keys:
            visible = window_mask(seen.to(self.decoder.device), keys, trees)
            mask = self.decoder.scores_mask(visible)
        return AttentionGroup(
            rows=rows, slots=slots, width=seen.shape[1], keys=keys, mask=mask, scatter=scatter
        )
