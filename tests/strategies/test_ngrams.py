"""What an index of n-grams finds in a text, and how long it says that the match is."""

from __future__ import annotations

import random

import pytest

from marslm.strategies.ngrams import LONGEST_KEY, LONGEST_MATCH, NgramIndex


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ([1, 2, 3], 0),
        ([4, 1, 5, 1], 1),
        ([4, 1, 2, 5, 1, 2], 2),
        ([0, 1, 2, 3, 4, 9, 8, 1, 2, 3, 4], 4),
        ([1, 2, 3, 4, 1, 2, 3, 4], 4),
        ([*range(20), 50, *range(20)], LONGEST_MATCH),
    ],
)
def test_a_match_is_as_long_as_both_places_agree(text: list[int], length: int) -> None:
    assert NgramIndex().find(text, 1).length == length


def test_an_index_that_grows_finds_what_a_search_finds() -> None:
    """Texts of few tokens, read in pieces of any size."""
    generator = random.Random(0)
    for _ in range(30):
        index, text = NgramIndex(), [generator.randrange(4)]
        while len(text) < 60:
            text += [generator.randrange(4) for _ in range(generator.randrange(1, 5))]
            match = index.find(text, 3)
            assert (list(match.tokens), match.length) == search(text, 3)


def search(text: list[int], count: int) -> tuple[list[int], int]:
    """Look at every place, the latest first, for the longest end that stood there before."""
    for size in range(LONGEST_KEY, 0, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:] and size <= end:
                length = size
                while length < min(LONGEST_MATCH, end) and size == LONGEST_KEY:
                    if text[end - length - 1] != text[-length - 1]:
                        break
                    length += 1
                return text[end : end + count], length
    return [], 0
