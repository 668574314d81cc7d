"""The two streams of a MARS training batch, as facts about rows (paper section 3).

Every input row, clean or masked, is described by four integers, and everything else follows from
them: the attention mask (`masks`), the targets (`losses`) and the rotary positions. A clean prefix
x[0..a] followed by masks at a+1 .. a+B-1 is one *block*: its `anchor` is a, the last clean token
it sees.

Knows nothing about token ids, models or how examples are batched.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from marslm.core.forms import MARS, Form

CLEAN = -1
"""`Rows.block` of a row that carries a real token."""

PADDING = -1
"""`Rows.document` of a row that carries nothing."""


@dataclass(frozen=True)
class Rows:
    """What the method needs to know of each input row; all fields int64, all of one shape [..., R].

    position: index of the row's token in its own text, which is also its rotary position.
    anchor: last clean position that the row may see; a clean row's anchor is itself.
    block: number of the masked block that the row belongs to, or `CLEAN`.
    document: number of the text that the row belongs to, or `PADDING`.
    """

    position: Tensor
    anchor: Tensor
    block: Tensor
    document: Tensor

    def __getitem__(self, index: object) -> Rows:
        """Index all four fields alike."""
        return Rows(*(getattr(self, field.name)[index] for field in fields(self)))

    def __len__(self) -> int:
        return int(self.position.shape[-1])

    def to(self, device: torch.device) -> Rows:
        """Return the same rows on a device."""
        return Rows(*(getattr(self, field.name).to(device) for field in fields(self)))


def clean_rows(length: int) -> Rows:
    """Return the rows of the clean stream x[0..length-1] of one text, each of shape [length]."""
    position = torch.arange(length)
    return Rows(position, position, torch.full_like(position, CLEAN), torch.zeros_like(position))


def mask_rows(anchors: Tensor, masks: Tensor) -> Rows:
    """Return the rows of the noisy stream: `masks[b]` masks right after each `anchors[b]`.

    anchors, masks: int64 [blocks]. The result has sum(masks) rows, block after block.
    """
    block = torch.repeat_interleave(torch.arange(len(anchors)), masks)
    first_row = torch.cumsum(masks, 0) - masks
    distance = torch.arange(len(block)) - first_row[block] + 1
    anchor = anchors[block]
    return Rows(anchor + distance, anchor, block, torch.zeros_like(block))


def join(streams: list[Rows]) -> Rows:
    """Put streams one after another along the row axis."""
    return Rows(
        *(torch.cat([getattr(s, field.name) for s in streams], dim=-1) for field in fields(Rows))
    )


def distance(rows: Rows) -> Tensor:
    """Return how many masks each row sees, itself included: 0 on clean rows, 1..B-1 on masks."""
    return rows.position - rows.anchor


def possible_anchors(supervised: Tensor) -> Tensor:
    """Return the clean positions a whose next token a+1 is supervised, int64 [n], ascending."""
    return torch.nonzero(supervised[1:]).flatten()


def block_anchors(supervised: Tensor, block_size: int) -> Tensor:
    """Return the anchors of the paper's fixed blocks: each supervised run cut into blocks of B.

    The first block of a run starts after the last token of the prompt, so its anchor is that token.
    """
    anchors = possible_anchors(supervised)
    ends = run_ends(supervised)[anchors + 1]
    first_of_run = torch.ones_like(ends, dtype=torch.bool)
    first_of_run[1:] = ends[1:] != ends[:-1]
    run_start = anchors[first_of_run][torch.cumsum(first_of_run, 0) - 1]
    return anchors[(anchors - run_start) % block_size == 0]


def rows_per_anchor(
    supervised: Tensor, anchors: Tensor, block_size: int, form: Form = MARS
) -> Tensor:
    """Return how many rows follow each anchor: those of the form, or fewer where the run ends.

    A row whose target lies past the supervised run of a+1 would predict nothing: a model is never
    trained to write on after its own end of turn. Where rows see those after them, they stay, since
    a decoder has them too.
    """
    rows = form.trained_rows(block_size)
    if form.bidirectional or form.order == "confidence":
        return torch.full_like(anchors, rows)
    ends = run_ends(supervised)[anchors + 1]
    first_target = 1 if form.alignment == "own" else 2
    return (ends - anchors - first_target).clamp(max=rows)


def run_ends(supervised: Tensor) -> Tensor:
    """Return for each supervised token where its run ends (exclusive), and 0 for the others."""
    length = len(supervised)
    open_end = torch.full((length + 1,), length)
    gaps = torch.where(supervised, length, torch.arange(length))
    open_end[:length] = torch.flip(torch.cummin(torch.flip(gaps, [0]), 0).values, [0])
    return torch.where(supervised, open_end[:length], 0)


def hidden_cells(
    supervised: Tensor, anchors: Tensor, block_size: int, draw: torch.Generator
) -> Tensor:
    """Return which cells of each block are masked when only part of it is, bool [blocks, B + 2].

    Cell c of a block stands at anchor + c; cells 0 and B + 1 are outside it and never masked. A
    uniform number of the cells inside the supervised run is masked, any of them; those past its end
    always are, having no token to show.
    """
    inside = (run_ends(supervised)[anchors + 1] - anchors - 1).clamp(max=block_size)
    wanted = 1 + (torch.rand(len(anchors), generator=draw) * inside).long().clamp(max=inside - 1)
    cell = torch.arange(block_size + 2)
    order = torch.rand(len(anchors), block_size + 2, generator=draw)
    past = cell > inside[:, None]
    outside = (cell == 0) | (cell == block_size + 1)
    rank = order.masked_fill(past | outside, 2.0).argsort(1).argsort(1)
    return ((rank < wanted[:, None]) | past) & ~outside
