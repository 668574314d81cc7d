"""One example as rows and targets: the clean text and the blocks cut from it (paper section 3).

Knows nothing about batches, models or the order of examples.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from marslm.core.forms import Form
from marslm.core.losses import IGNORE, block_targets, right_shift_targets
from marslm.core.streams import (
    Rows,
    block_anchors,
    clean_rows,
    distance,
    hidden_cells,
    mask_rows,
    possible_anchors,
    rows_per_anchor,
    run_ends,
)
from marslm.data.encode import Example

Item: TypeAlias = "dict[str, Any]"

HIDDEN = -1
"""`noisy_ids` of a row that is [MASK]: the data do not know its id."""


def choose_anchors(
    example: Example, block_size: int, sampled: int | None, draw: torch.Generator
) -> Tensor:
    """Return the anchors of the paper's fixed blocks, or so many `sampled` ones, ascending."""
    supervised = torch.tensor(example.supervised)
    if sampled is None:
        return block_anchors(supervised, block_size)
    candidates = possible_anchors(supervised)
    order = torch.randperm(len(candidates), generator=draw)
    return candidates[order[:sampled]].sort().values


def two_streams(
    example: Example, anchors: Tensor, block_size: int, form: Form, draw: torch.Generator
) -> Item:
    """Return rows and targets of one example: clean [L] and noisy [N].

    ids, noisy_ids: tokens, `HIDDEN` where the row is a mask. clean_targets, noisy_targets: what
    the rows predict. first: clean rows that read the first candidate of a block, for L_mask.
    place: for each noisy row, the clean row at its position, 0 past the end.
    """
    ids, supervised = torch.tensor(example.ids), torch.tensor(example.supervised)
    clean = clean_rows(len(ids))
    noisy = mask_rows(anchors, rows_per_anchor(supervised, anchors, block_size, form))
    first = torch.zeros(len(ids), dtype=torch.bool)
    first[_read_clean(supervised, anchors, form)] = True
    inside = noisy.position < len(ids)
    item = {
        "ids": ids,
        "first": first,
        "clean": clean,
        "noisy": noisy,
        "noisy_ids": torch.full_like(noisy.position, HIDDEN),
        "place": torch.where(inside, noisy.position, 0),
        "clean_targets": right_shift_targets(clean.position, ids, supervised),
        "noisy_targets": block_targets(noisy, ids, supervised, form.alignment),
    }
    if form.order == "confidence":
        _show_part(item, hidden_cells(supervised, anchors, block_size, draw), anchors, form)
    return item


def _read_clean(supervised: Tensor, anchors: Tensor, form: Form) -> Tensor:
    """Return the anchors whose own row reads their block's first candidate."""
    if form.alignment == "own":
        return anchors[:0]
    if form.block_start == "clean" or len(anchors) == 0:
        return anchors
    # A later block of the same run has its first token read from the previous block's last mask.
    ends = run_ends(supervised)[anchors + 1]
    return anchors[torch.cat([torch.ones(1, dtype=torch.bool), ends[1:] != ends[:-1]])]


def _show_part(item: Item, hidden: Tensor, anchors: Tensor, form: Form) -> None:
    """Put real tokens where `hidden` [blocks, B + 2] says so; only masked cells are targets."""
    noisy: Rows = item["noisy"]
    cell = distance(noisy)
    shown = ~hidden[noisy.block, cell]
    item["noisy_ids"] = torch.where(shown, item["ids"][item["place"]], HIDDEN)
    learned = hidden[noisy.block, cell + (form.alignment == "next")]
    item["noisy_targets"] = torch.where(learned, item["noisy_targets"], IGNORE)
    if form.alignment == "next":
        item["first"][anchors] = hidden[:, 1]


def pack(items: list[Item]) -> Item:
    """Put several texts into one sequence; none sees another, since each is its own document."""
    offsets = torch.tensor([0, *(len(item["ids"]) for item in items)]).cumsum(0).tolist()
    packed: Item = {
        name: torch.cat([item[name] for item in items])
        for name in ("ids", "first", "noisy_ids", "clean_targets", "noisy_targets")
    }
    packed["place"] = torch.cat(
        [item["place"] + offset for item, offset in zip(items, offsets, strict=False)]
    )
    for stream in ("clean", "noisy"):
        packed[stream] = _join([item[stream] for item in items])
    return packed


def _join(streams: list[Rows]) -> Rows:
    numbers = [torch.full_like(rows.document, number) for number, rows in enumerate(streams)]
    return Rows(
        position=torch.cat([rows.position for rows in streams]),
        anchor=torch.cat([rows.anchor for rows in streams]),
        block=torch.cat([rows.block for rows in streams]),
        document=torch.cat(numbers),
    )
