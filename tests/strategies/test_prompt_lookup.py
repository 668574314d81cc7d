"""What `prompt_lookup` finds in a text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers import facts_for
from marslm.runtime.sequence import Sequence
from marslm.strategies.base import StepSettings
from marslm.strategies.prompt_lookup import PromptLookup

MakeSequence = Callable[..., Sequence]


def guess(sequence: Sequence, block: int = 4) -> list[int]:
    window = PromptLookup(facts_for(9)).propose([sequence], [StepSettings(block, 0.9)])[0]
    return list(window.tokens)


@pytest.mark.parametrize(
    ("text", "guesses"),
    [
        ([1, 2, 3], []),
        ([1, 2, 1], [2, 1]),
        ([5, 6, 7, 8, 0, 5, 6], [7, 8, 0]),
        ([1, 2, 3, 9, 2, 3, 4, 1, 2, 3], [9, 2, 3]),  # three tokens beat the later match of two
        ([7, 1, 7, 2, 7], [2, 7]),  # of equal matches the last one
        ([4, 4, 4], [4]),
    ],
)
def test_the_longest_and_then_the_latest_match(
    make_sequence: MakeSequence, text: list[int], guesses: list[int]
) -> None:
    assert guess(make_sequence(text)) == guesses


def test_the_index_grows_with_the_text(make_sequence: MakeSequence) -> None:
    sequence = make_sequence([1, 2, 3])
    assert guess(sequence) == []
    for token, guesses in [(8, []), (2, [3, 8, 2]), (9, []), (2, [9, 2]), (3, [8, 2, 9])]:
        sequence.tokens.append(token)
        assert guess(sequence) == guesses


def test_a_block_of_one_guesses_nothing(make_sequence: MakeSequence) -> None:
    assert guess(make_sequence([1, 1, 1]), block=1) == []
