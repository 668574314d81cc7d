"""`lossless` on logits written by hand: what is verified, what is drafted, what stays cached."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from helpers import facts_for
from marslm.runtime.sampling import choose
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import Outcome, StepSettings
from marslm.strategies.lossless import MIN_DRAFT_CONFIDENCE, Lossless, LosslessChain

MASK = 9
SETTINGS = StepSettings(block=4, tau=0.9)
SURE = 0.97
MakeSequence = Callable[..., Sequence]


def rows(*choices: int, share: float = SURE) -> Tensor:
    """Return logits [R, 10] in which row i chooses a token with probability `share`."""
    shares = torch.full((len(choices), 10), (1 - share) / 8, dtype=torch.float64)
    shares[:, MASK] = 0
    for row, token in enumerate(choices):
        shares[row, token] = share
    return shares.log()


def propose(strategy: Lossless, sequence: Sequence, settings: StepSettings = SETTINGS) -> list[int]:
    """Return the window's tokens."""
    return list(strategy.propose([sequence], [settings])[0].tokens)


def step(strategy: Lossless, sequence: Sequence, logits: Tensor) -> Outcome:
    """Propose and accept, with the logits that this window gets."""
    window = Window(propose(strategy, sequence))
    assert len(logits) == 1 + len(window)
    return strategy.accept(sequence, window, logits, SETTINGS)


def test_the_first_step_takes_the_free_token_and_drafts_from_the_masks(
    make_sequence: MakeSequence,
) -> None:
    strategy, sequence = LosslessChain(facts_for(MASK)), make_sequence([1])
    assert propose(strategy, sequence) == [MASK] * 3
    outcome = step(strategy, sequence, rows(3, 4, 5, 6))
    assert outcome == Outcome([3], kept=0)
    assert propose(strategy, sequence) == [4, 5, 6, MASK, MASK, MASK]


def test_verified_drafts_are_kept_and_one_token_is_free(make_sequence: MakeSequence) -> None:
    strategy, sequence = LosslessChain(facts_for(MASK)), make_sequence([1])
    step(strategy, sequence, rows(3, 4, 5, 6))
    sequence.commit([3])
    outcome = step(strategy, sequence, rows(4, 5, 6, 7, 0, 1, 2))
    assert outcome == Outcome([4, 5, 6, 7], kept=3)
    assert propose(strategy, sequence) == [0, 1, 2, MASK, MASK, MASK]


def test_a_miss_is_replaced_and_ends_the_step(make_sequence: MakeSequence) -> None:
    """Nothing behind it is kept, and the masks stood behind a wrong token: no drafts."""
    strategy, sequence = LosslessChain(facts_for(MASK)), make_sequence([1])
    step(strategy, sequence, rows(3, 4, 5, 6))
    sequence.commit([3])
    outcome = step(strategy, sequence, rows(4, 8, 6, 7, 0, 1, 2))
    assert outcome == Outcome([4, 8], kept=1)
    assert propose(strategy, sequence) == [MASK] * 3


def test_drafts_end_before_the_first_unlikely_one(make_sequence: MakeSequence) -> None:
    strategy, sequence = LosslessChain(facts_for(MASK)), make_sequence([1])
    below, above = MIN_DRAFT_CONFIDENCE - 0.01, MIN_DRAFT_CONFIDENCE + 0.01
    logits = torch.cat([rows(3), rows(4, share=above), rows(5, share=below), rows(6)])
    step(strategy, sequence, logits)
    assert propose(strategy, sequence) == [4, MASK, MASK, MASK]


def test_an_unlikely_free_token_is_still_taken(make_sequence: MakeSequence) -> None:
    outcome = step(LosslessChain(facts_for(MASK)), make_sequence([1]), rows(3, 4, 5, 6, share=0.15))
    assert outcome == Outcome([3], kept=0)


def test_a_block_of_one_is_one_token_decoding(make_sequence: MakeSequence) -> None:
    strategy, sequence, alone = (
        LosslessChain(facts_for(MASK)),
        make_sequence([1]),
        StepSettings(1, 0.9),
    )
    assert propose(strategy, sequence, alone) == []
    assert strategy.accept(sequence, Window(), rows(3), alone) == Outcome([3], kept=0)
    assert propose(strategy, sequence, alone) == []


def test_a_window_cut_inside_its_drafts_is_no_trouble(make_sequence: MakeSequence) -> None:
    """Near the limit of the text: two of three drafts fit, and no mask."""
    strategy, sequence = LosslessChain(facts_for(MASK)), make_sequence([1])
    step(strategy, sequence, rows(3, 4, 5, 6))
    sequence.commit([3])
    window = propose(strategy, sequence)[:2]
    assert strategy.accept(sequence, Window(window), rows(4, 5, 6), SETTINGS) == Outcome(
        [4, 5, 6], 2
    )
    assert propose(strategy, sequence) == [MASK] * 3


def test_drafts_are_drawn_with_the_noise_of_the_places_they_are_for(
    make_sequence: MakeSequence,
) -> None:
    """So that a draft and the draw that judges it agree wherever their distributions do."""
    sequence = make_sequence([1, 2, 3], temperature=1.0, seed=2)
    even = torch.full((4, 10), -torch.inf, dtype=torch.float64)
    even[:, 3:6] = 0
    strategy = LosslessChain(facts_for(MASK))
    first = step(strategy, sequence, even).new_tokens
    drafts = propose(strategy, sequence)[:3]
    assert first + drafts == choose(even, make_sequence([1, 2, 3], temperature=1.0, seed=2))


def test_requests_do_not_share_drafts(make_sequence: MakeSequence) -> None:
    strategy, one, other = LosslessChain(facts_for(MASK)), make_sequence([1]), make_sequence([2])
    step(strategy, one, rows(3, 4, 5, 6))
    assert propose(strategy, other) == [MASK] * 3


def test_sampled_tokens_follow_the_models_distribution(make_sequence: MakeSequence) -> None:
    """Chi-square over seeds of the fourth token, whichever step brings it, verified or free."""
    shares, draws = torch.tensor([0.5, 0.3, 0.2]), 1500
    clean = torch.full((10,), -torch.inf, dtype=torch.float64)
    drafting = clean.clone()
    clean[3:6], drafting[3:6] = shares.log(), torch.tensor([0.2, 0.5, 0.3]).log()
    counts, verified = torch.zeros(3), 0
    strategy = LosslessChain(facts_for(MASK))
    for seed in range(draws):
        sequence = make_sequence([1], temperature=1.0, seed=seed)
        while len(sequence.tokens) < 5:
            window = Window(propose(strategy, sequence))
            logits = torch.stack(
                [clean, *(drafting if t == MASK else clean for t in window.tokens)]
            )
            outcome = strategy.accept(sequence, window, logits, SETTINGS)
            verified += outcome.kept
            sequence.commit(outcome.new_tokens)
        counts[sequence.tokens[4] - 3] += 1
    expected = draws * shares
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # one in a thousand, 2 degrees
    assert verified > draws
