"""Guesses are judged by what is written, and their chances follow."""

from __future__ import annotations

import pytest

from marslm.strategies.acceptance import DraftOdds, from_text
from marslm.strategies.drafts import Drafts

MATCH = from_text(2, 4)


def test_chances_are_those_of_prefixes() -> None:
    drafts = Drafts(DraftOdds())
    drafts.take([5, 6, 7, 8], MATCH)
    expected, reach = [], 1.0
    for _, chance in MATCH:
        reach *= chance
        expected.append(reach)
    assert drafts.chances == pytest.approx(expected)
    assert drafts.hope == pytest.approx(sum(expected))


def test_guesses_end_with_the_first_below_the_floor() -> None:
    """It cannot pay, but what becomes of it is worth knowing."""
    drafts = Drafts(DraftOdds())
    drafts.take([5, 6, 7, 8], MATCH)
    reach = drafts.chances
    drafts.take([5, 6, 7, 8], MATCH, floor=reach[1])
    assert list(drafts.tokens) == [5, 6]
    assert drafts.chances == reach[:2]


def test_guesses_that_came_true_make_the_next_ones_likelier() -> None:
    """In the request and, less so, in others."""
    odds = DraftOdds()
    drafts, other = Drafts(odds), Drafts(odds)
    other.take([5, 6], MATCH[:2])
    before = other.chances[0]
    for _ in range(20):
        drafts.take([5, 6], MATCH[:2])
        drafts.judge([5, 6])
    drafts.take([5, 6], MATCH[:2])
    other.take([5, 6], MATCH[:2])
    assert before < other.chances[0] <= drafts.chances[0]


def test_nothing_is_learned_behind_a_wrong_guess() -> None:
    """What follows it was meant for another text."""
    drafts = Drafts(DraftOdds())
    drafts.take([5, 6, 7], MATCH[:3])
    single = [chance for _, chance in MATCH[:3]]
    for _ in range(50):
        drafts.take([5, 6, 7], MATCH[:3])
        drafts.judge([5, 9, 7])
    fresh = Drafts(drafts._odds)
    fresh.take([5, 6, 7], MATCH[:3])
    assert fresh.chances[0] > 0.9
    assert fresh.chances[1] < 0.1
    assert fresh.chances[2] / fresh.chances[1] == pytest.approx(single[2])


def test_judged_guesses_are_gone() -> None:
    drafts = Drafts(DraftOdds())
    drafts.take([5, 6], MATCH[:2])
    drafts.judge([5])
    assert (list(drafts.tokens), list(drafts.chances)) == ([], [])
