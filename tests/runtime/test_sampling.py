"""Draws follow the distribution, and only the seed and the position decide them (FAULTS 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from helpers import make_sequence
from marslm.runtime.sampling import choose, draw
from marslm.runtime.sequence import Sequence

LOGITS = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.2, -0.4], dtype=torch.float64)
DRAWS = 4000
# Exceeded by chance once in ten thousand times, at 5 and at 35 degrees of freedom.
CRITICAL, CRITICAL_PAIRS = 25.7, 73.4


def chi_square(counts: Iterable[float], shares: Tensor) -> float:
    seen = torch.tensor(list(counts), dtype=torch.float64)
    expected = shares * seen.sum()
    return float(((seen - expected) ** 2 / expected).sum())


def at(position: int, **params: object) -> Sequence:
    """Return a request whose next token is the one at `position`."""
    return make_sequence([0] * position, **params)


def draw_positions(temperature: float, seed: int) -> list[int]:
    return choose(LOGITS.expand(DRAWS, -1), at(17, temperature=temperature, seed=seed))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("seed", [0, 1, 123456789])
def test_draws_over_positions_follow_the_softmax(temperature: float, seed: int) -> None:
    counts = Counter(draw_positions(temperature, seed))
    shares = torch.softmax(LOGITS / temperature, dim=-1)
    assert chi_square((counts[token] for token in range(6)), shares) < CRITICAL


def test_draws_over_seeds_follow_the_softmax() -> None:
    draws = Counter(
        choose(LOGITS[None], at(40, temperature=1.0, seed=seed))[0] for seed in range(DRAWS)
    )
    shares = torch.softmax(LOGITS, dim=-1)
    assert chi_square((draws[token] for token in range(6)), shares) < CRITICAL


@pytest.mark.parametrize("apart", [1, 2])
def test_draws_at_neighbouring_positions_are_independent(apart: int) -> None:
    draws = draw_positions(1.0, 5)
    pairs = Counter(zip(draws, draws[apart:], strict=False))
    shares = torch.softmax(LOGITS, dim=-1)
    joint = (shares[:, None] * shares).flatten()
    seen = (pairs[left, right] for left in range(6) for right in range(6))
    assert chi_square(seen, joint) < CRITICAL_PAIRS


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    """Neither on the rows beside it nor on how many tokens the step before it accepted."""
    rows = torch.randn(12, 30, generator=torch.Generator().manual_seed(1))
    params = {"temperature": 0.8, "seed": 9}
    together = choose(rows, at(100, **params))
    alone = [choose(rows[i : i + 1], at(100 + i, **params))[0] for i in range(12)]
    halves = choose(rows[:5], at(100, **params)) + choose(rows[5:], at(105, **params))
    ahead = choose(rows[5:], at(100, **params), together[:5])
    assert together == alone == halves == together[:5] + ahead


def test_draws_leave_the_global_random_state_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    request = at(1, temperature=1.0)
    first = choose(LOGITS.expand(20, -1), request)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert choose(LOGITS.expand(20, -1), request) == first


@pytest.mark.parametrize("other", [1, -1, 2**31, 2**32, 2**40, 2**62])
def test_another_seed_draws_otherwise(other: int) -> None:
    """All of a seed counts, although torch's CPU generator takes 32 bits of its own seed."""
    uniform = torch.zeros(20, 100)
    draws = [choose(uniform, at(1, temperature=1, seed=s)) for s in (0, other)]
    assert sum(a == b for a, b in zip(*draws, strict=True)) < 5


def test_greedy_is_the_argmax_whatever_the_seed() -> None:
    rows = torch.randn(8, 30, generator=torch.Generator().manual_seed(2))
    for seed in range(3):
        assert choose(rows, at(1 + seed, seed=seed)) == rows.argmax(-1).tolist()


def test_a_low_temperature_nears_greedy() -> None:
    rows = torch.randn(50, 30, generator=torch.Generator().manual_seed(3))
    assert choose(rows, at(1, temperature=1e-4)) == rows.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_an_excluded_token_is_never_drawn(temperature: float) -> None:
    rows = torch.zeros(400, 3)
    rows[:, 1] = -torch.inf
    assert 1 not in choose(rows, at(1, temperature=temperature))


def test_the_distribution_that_draws_follow_is_reported() -> None:
    for temperature in (0.5, 2.0):
        got = draw(LOGITS[None], at(1, temperature=temperature)).log_probs()
        torch.testing.assert_close(got, torch.log_softmax(LOGITS[None] / temperature, -1))
    greedy = draw(LOGITS[None], at(1)).log_probs()
    torch.testing.assert_close(greedy, torch.log_softmax(LOGITS[None], -1))


@pytest.mark.parametrize(
    ("given", "wide"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_probabilities_are_computed_wide(given: torch.dtype, wide: torch.dtype) -> None:
    assert draw(LOGITS[None].to(given), at(1)).log_probs().dtype == wide


def test_the_precision_of_logits_does_not_change_the_noise() -> None:
    rows = (8 * torch.randn(40, 30, generator=torch.Generator().manual_seed(4))).bfloat16()
    request = at(1, temperature=1.0, seed=3)
    assert choose(rows, request) == choose(rows.double(), request)
