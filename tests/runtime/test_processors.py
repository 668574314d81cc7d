"""What shapes a distribution, against definitions written out token by token (FAULTS 11)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import make_sequence
from marslm.runtime.params import SamplingParams
from marslm.runtime.processors import add_bias, truncate
from marslm.runtime.sampling import draw

VOCABULARY = 24
END = 5


def random_scores(seed: int, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(rows, VOCABULARY, generator=generator, dtype=torch.float64)


def naive_truncate(scores: list[float], params: SamplingParams) -> set[int]:
    """Return the tokens that stay: top_k, then top_p of what is left, then min_p of that."""
    kept = sorted(range(len(scores)), key=lambda token: -scores[token])
    if params.top_k:
        kept = kept[: params.top_k]
    total = sum(math.exp(scores[token]) for token in kept)
    reached, nucleus = 0.0, []
    for token in kept:
        if nucleus and reached >= params.top_p:
            break
        nucleus.append(token)
        reached += math.exp(scores[token]) / total
    best = math.exp(scores[nucleus[0]])
    return {token for token in nucleus if math.exp(scores[token]) >= params.min_p * best}


@given(
    seed=st.integers(0, 1000),
    top_k=st.integers(0, VOCABULARY + 3),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
def test_truncation_keeps_what_its_definition_keeps(
    seed: int, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    scores = random_scores(seed, rows=2)
    for row, kept in zip(scores, truncate(scores, params), strict=True):
        stays = set(torch.nonzero(kept > -torch.inf).flatten().tolist())
        assert stays == naive_truncate(row.tolist(), params)
        assert torch.equal(kept[sorted(stays)], row[sorted(stays)])


@pytest.mark.parametrize("share", [0.2, 0.9, 0.9999])
def test_a_wide_nucleus_is_found_too(share: float) -> None:
    """More tokens than the first look takes in."""
    scores = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)).double()
    kept = truncate(scores, SamplingParams(top_p=share))
    probabilities = torch.softmax(scores, -1)
    inside = probabilities[kept > -torch.inf]
    assert len(inside) > 64
    assert inside.sum() >= share > inside.sum() - inside.min()


def test_a_bias_adds_and_an_excluded_token_stays_excluded() -> None:
    scores = random_scores(0, rows=2)
    scores[:, 3] = -torch.inf
    biased = add_bias(scores, SamplingParams(logit_bias={3: 100.0, 4: 1.5, 6: -math.inf}))
    assert torch.equal(biased[:, 4], scores[:, 4] + 1.5)
    assert (biased[:, [3, 6]] == -torch.inf).all()
    others = [t for t in range(VOCABULARY) if t not in (3, 4, 6)]
    assert torch.equal(biased[:, others], scores[:, others])


tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)


@given(
    seed=st.integers(0, 1000),
    prompt=tokens.filter(bool),
    answer=tokens,
    repetition=st.floats(0.5, 2),
    frequency=st.floats(-1, 1),
    presence=st.floats(-1, 1),
    min_tokens=st.integers(0, 8),
)
def test_every_row_counts_the_text_that_it_would_follow(
    seed: int,
    prompt: list[int],
    answer: list[int],
    repetition: float,
    frequency: float,
    presence: float,
    min_tokens: int,
) -> None:
    """Of four rows, each one's text has the choices of the rows before it."""
    sequence = make_sequence(
        [*prompt, *answer[:3]],
        prompt_length=len(prompt),
        ends=[END],
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        min_tokens=min_tokens,
    )
    logits, ahead = random_scores(seed, rows=4), answer[3:]
    draws = draw(logits, sequence, ahead)
    for place, row in enumerate(logits.tolist()):
        written = [*answer, *draws.tokens[:place]]
        expected = []
        for token, score in enumerate(row):
            if token in prompt or token in written:
                score = score / repetition if score > 0 else score * repetition  # noqa: PLW2901
            score -= frequency * written.count(token) + presence * (token in written)  # noqa: PLW2901
            banned = token == END and len(written) < min_tokens
            expected.append(-math.inf if banned else score)
        torch.testing.assert_close(draws.scores[place].tolist(), expected)
        assert draws.tokens[place] == expected.index(max(expected))


def test_plain_greedy_does_not_touch_the_logits() -> None:
    """top_k and its like leave the likeliest token in, so greedy decoding need not know them."""
    logits = random_scores(2, rows=3).float()
    draws = draw(logits, make_sequence([1], top_k=3, top_p=0.5, min_p=0.2))
    assert draws.scores is logits
