"""What one request feeds into a forward, and who of its rows sees whom.

Knows nothing about what the window entries mean.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from marslm.core.masks import Tree
from marslm.runtime.window import Window

NARROW = 16
"""Requests of up to so many rows attend together; wider ones on their own, so that nobody is padded
to a prompt."""


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

    @property
    def sees(self) -> list[int]:
        """Which of its own rows each row sees, row j as bit j; all see the cells before them."""
        pending, rows = len(self.pending), len(self.tokens)
        if self.window.bidirectional:
            return [(2 << row) - 1 for row in range(pending)] + [(1 << rows) - 1] * (rows - pending)
        if self.window.parents is None:
            return [(2 << row) - 1 for row in range(rows)]
        sees = [(2 << row) - 1 for row in range(pending)]
        for parent in self.window.parents:
            above = sees[pending + parent] if parent >= 0 else (1 << pending) - 1
            sees.append(above | 1 << len(sees))
        return sees

    def mask_rows(self, mask_token_id: int) -> list[int]:
        """Return the rows of window entries that are [MASK]; in a prompt the id is only a token."""
        pending = len(self.pending)
        return [pending + i for i, t in enumerate(self.window.tokens) if t == mask_token_id]

    def tree(self, place: int) -> Tree | None:
        """Return the window as a tree at `place` of a mask, None for a chain."""
        parents = self.window.parents
        return Tree(place, len(self.pending), self.window_cell, parents) if parents else None


def mask_rows(works: ListOf[Work], mask_token_id: int) -> list[int]:
    """Return the rows of [MASK]s when the works' rows follow one another."""
    rows: list[int] = []
    start = 0
    for work in works:
        rows += [start + row for row in work.mask_rows(mask_token_id)]
        start += len(work.tokens)
    return rows


def output_rows(works: ListOf[Work]) -> list[int]:
    """Return the rows that need logits when the works' rows follow one another."""
    rows: list[int] = []
    end = 0
    for work in works:
        end += len(work.tokens)
        rows += range(end - work.wanted, end)
    return rows
