"""Where blocks start, how many masks follow, and what the rows say."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marslm.core.streams import (
    CLEAN,
    Rows,
    block_anchors,
    clean_rows,
    distance,
    join,
    mask_rows,
    possible_anchors,
    rows_per_anchor,
    run_ends,
)

patterns = st.text("CA", min_size=1, max_size=24)


def flags(pattern: str) -> torch.Tensor:
    return torch.tensor([c == "A" for c in pattern])


def answers(pattern: str) -> list[range]:
    """Return the supervised runs that have a token before them; a first token has no anchor."""
    runs, start = [], 0
    for kind, run in groupby(pattern):
        end = start + len(list(run))
        if kind == "A" and end > max(start, 1):
            runs.append(range(max(start, 1), end))
        start = end
    return runs


@pytest.mark.parametrize(
    ("pattern", "block_size", "anchors", "masks"),
    [
        ("CCCAAAAAAAA", 4, [2, 6], [3, 3]),
        ("CCCAAAAAAA", 4, [2, 6], [3, 2]),
        ("CCCAAAAA", 4, [2, 6], [3, 0]),
        ("CCAAAAAA", 2, [1, 3, 5], [1, 1, 1]),
        ("CCAAACCAAAAA", 4, [1, 6, 10], [2, 3, 0]),
        ("CACACA", 4, [0, 2, 4], [0, 0, 0]),
        ("AAAAAA", 3, [0, 3], [2, 1]),
        ("CA", 8, [0], [0]),
        ("CCCC", 4, [], []),
        ("A", 4, [], []),
    ],
)
def test_fixed_blocks(pattern: str, block_size: int, anchors: list[int], masks: list[int]) -> None:
    found = block_anchors(flags(pattern), block_size)
    assert found.tolist() == anchors
    assert rows_per_anchor(flags(pattern), found, block_size).tolist() == masks


@given(patterns, st.integers(2, 6))
def test_fixed_blocks_predict_each_answer_token_once(pattern: str, block_size: int) -> None:
    """A block of B candidates: one from the clean anchor, the rest from its masks."""
    anchors = block_anchors(flags(pattern), block_size)
    masks = rows_per_anchor(flags(pattern), anchors, block_size)
    predicted = [
        anchor + 1 + seen
        for anchor, count in zip(anchors.tolist(), masks.tolist(), strict=True)
        for seen in range(count + 1)
    ]
    assert predicted == [position for run in answers(pattern) for position in run]


@given(patterns, st.integers(2, 6))
def test_only_the_last_block_of_an_answer_is_short(pattern: str, block_size: int) -> None:
    anchors = block_anchors(flags(pattern), block_size).tolist()
    expected = [a - 1 for run in answers(pattern) for a in run[::block_size]]
    assert anchors == expected


@given(patterns, st.integers(2, 6))
def test_masks_stay_inside_the_answer_of_their_anchor(pattern: str, block_size: int) -> None:
    """For any anchor: as many masks as fit, none of which predicts past the end of turn."""
    supervised = flags(pattern)
    anchors = possible_anchors(supervised)
    assert anchors.tolist() == [p - 1 for run in answers(pattern) for p in run]
    masks = rows_per_anchor(supervised, anchors, block_size).tolist()
    runs = {position: run for run in answers(pattern) for position in run}
    for anchor, count in zip(anchors.tolist(), masks, strict=True):
        left_in_answer = runs[anchor + 1].stop - (anchor + 2)
        assert count == min(block_size - 1, left_in_answer)


@given(patterns)
def test_run_ends(pattern: str) -> None:
    expected = [
        len(pattern) - len(pattern[place:].lstrip("A")) if kind == "A" else 0
        for place, kind in enumerate(pattern)
    ]
    assert run_ends(flags(pattern)).tolist() == expected


def test_mask_rows() -> None:
    rows = mask_rows(torch.tensor([2, 5, 9]), torch.tensor([3, 0, 2]))
    assert rows.position.tolist() == [3, 4, 5, 10, 11]
    assert rows.anchor.tolist() == [2, 2, 2, 9, 9]
    assert rows.block.tolist() == [0, 0, 0, 2, 2]
    assert distance(rows).tolist() == [1, 2, 3, 1, 2]


def test_clean_rows_are_their_own_anchors() -> None:
    rows = clean_rows(4)
    assert rows.position.tolist() == rows.anchor.tolist() == [0, 1, 2, 3]
    assert set(rows.block.tolist()) == {CLEAN}
    assert distance(rows).tolist() == [0, 0, 0, 0]


def test_no_blocks_no_rows() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert len(mask_rows(none, none)) == 0


def test_join_and_index_keep_the_fields_apart() -> None:
    both = join([clean_rows(2), mask_rows(torch.tensor([1]), torch.tensor([2]))])
    assert len(both) == 4
    assert both.position.tolist() == [0, 1, 2, 3]
    assert both.anchor.tolist() == [0, 1, 1, 1]
    picked = both[torch.tensor([3, 0])]
    assert isinstance(picked, Rows)
    assert picked.position.tolist() == [3, 0]
    assert picked.block.tolist() == [0, CLEAN]
