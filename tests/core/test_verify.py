"""How many drafts plain decoding would have written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marslm.core.verify import matching_prefix


@pytest.mark.parametrize(
    ("drafts", "choices", "kept"),
    [
        ([], [5], 0),
        ([5], [5, 6], 1),
        ([4], [5, 6], 0),
        ([5, 6, 7], [5, 6, 7, 8], 3),
        ([5, 9, 7], [5, 6, 7, 8], 1),  # what follows a miss was read behind a wrong token
        ([9, 6, 7], [5, 6, 7, 8], 0),
    ],
)
def test_matching_prefix(drafts: list[int], choices: list[int], kept: int) -> None:
    assert matching_prefix(drafts, choices) == kept


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_kept_drafts_agree_and_the_next_does_not(drafts: list[int], choices: list[int]) -> None:
    kept = matching_prefix(drafts, choices[: len(drafts) + 1])
    assert drafts[:kept] == choices[:kept]
    assert kept == len(drafts) or drafts[kept] != choices[kept]
