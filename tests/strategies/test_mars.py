"""`mars` on logits written by hand: what it looks at, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers import facts_for
from marslm.runtime.sampling import choose
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import StepSettings
from marslm.strategies.mars import Mars

MASK = 9
MakeSequence = Callable[..., Sequence]


def rows(*pairs: tuple[int, float]) -> Tensor:
    """Return logits [R, 10] in which row i gives a token a probability, the rest share evenly."""
    shares = torch.zeros(len(pairs), 10, dtype=torch.float64)
    for row, (token, share) in enumerate(pairs):
        shares[row, :9] = (1 - share) / 8
        shares[row, token] = share
    return shares.log()


def accept(sequence: Sequence, logits: Tensor, tau: float) -> tuple[list[int], int]:
    window = Window([MASK] * (len(logits) - 1))
    outcome = Mars(facts_for(MASK)).accept(sequence, window, logits, StepSettings(len(logits), tau))
    return outcome.new_tokens, outcome.kept


@pytest.mark.parametrize(("block", "masks"), [(1, 0), (2, 1), (4, 3), (16, 15)])
def test_a_block_is_the_last_token_and_b_minus_1_masks(
    make_sequence: MakeSequence, block: int, masks: int
) -> None:
    windows = Mars(facts_for(MASK)).propose([make_sequence([1, 2])], [StepSettings(block, 0.9)])
    assert windows == [Window([MASK] * masks)]


def test_at_tau_one_there_is_nothing_to_look_at(make_sequence: MakeSequence) -> None:
    mars = Mars(facts_for(MASK))
    assert mars.propose([make_sequence([1])], [StepSettings(8, 1.0)]) == [Window([])]


@pytest.mark.parametrize(
    ("tau", "kept"), [(0.95, [3]), (0.85, [3, 4]), (0.6, [3, 4]), (0.4, [3, 4, 5, 6])]
)
def test_confident_candidates_are_kept_from_the_left(
    make_sequence: MakeSequence, tau: float, kept: list[int]
) -> None:
    """The first is kept at any confidence, the last only if the one before it is."""
    logits = rows((3, 0.3), (4, 0.9), (5, 0.5), (6, 0.99))
    assert accept(make_sequence([1]), logits, tau) == (kept, 0)


def test_the_keys_of_masks_are_never_kept(make_sequence: MakeSequence) -> None:
    tokens, kept = accept(make_sequence([1]), rows((3, 0.99), (4, 0.99), (5, 0.99)), 0.5)
    assert (tokens, kept) == ([3, 4, 5], 0)


def test_a_window_cut_short_is_no_trouble(make_sequence: MakeSequence) -> None:
    assert accept(make_sequence([1]), rows((3, 0.2)), 0.9) == ([3], 0)


def test_the_request_chooses_its_confidence(make_sequence: MakeSequence) -> None:
    """0.5 against 0.0625: a probability of 0.5, but a margin of 0.4375 and 1/e^H of about 0.18."""
    logits = rows((3, 0.5), (4, 0.5))
    for name, tau, count in [
        ("probability", 0.49, 2),
        ("margin", 0.49, 1),
        ("margin", 0.43, 2),
        ("entropy", 0.43, 1),
        ("entropy", 0.17, 2),
    ]:
        tokens, _ = accept(make_sequence([1], confidence=name), logits, tau)
        assert len(tokens) == count


def test_confidence_follows_the_temperature(make_sequence: MakeSequence) -> None:
    """What is drawn from is what is judged: a cold draw is a sure one."""
    logits = rows((3, 0.6), (4, 0.6), (5, 0.6))
    assert len(accept(make_sequence([1], temperature=0.2), logits, 0.9)[0]) == 3
    assert len(accept(make_sequence([1]), logits, 0.9)[0]) == 1


def test_candidates_are_drawn_at_their_places(make_sequence: MakeSequence) -> None:
    sequence = make_sequence([1, 2, 3], temperature=1.0, seed=4)
    logits = rows((3, 0.3), (4, 0.3), (5, 0.3))
    expected = choose(logits, sequence)
    assert accept(sequence, logits, 1e-9)[0] == expected
