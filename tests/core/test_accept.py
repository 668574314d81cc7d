"""The threshold rule and the three confidences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marslm.core.accept import CONFIDENCES, accepted_prefix, check_tau
from marslm.errors import InputError

NAN = float("nan")


@pytest.mark.parametrize(
    ("confidence", "tau", "kept"),
    [
        ([0.9, 0.9, 0.9], 0.8, 3),
        ([0.9, 0.9, 0.7], 0.8, 2),
        ([0.1, 0.9, 0.9], 0.8, 3),  # the first is always kept, and never ends the run
        ([0.1, 0.1, 0.9], 0.8, 1),  # nothing behind a miss is kept
        ([0.9, 0.5, 0.5], 0.5, 3),  # reaching tau is enough
        ([0.9], 0.8, 1),
        ([0.0], 0.5, 1),
        ([1.0, 1.0, 1.0], 1.0, 1),  # tau = 1: one token by rule, not by comparison
        ([1.0, 1.0], 1.5, 1),
        ([NAN, 0.9], 0.5, 2),
        ([0.9, NAN, 0.9], 0.5, 1),  # an undefined confidence is a miss
    ],
)
def test_accepted_prefix(confidence: list[float], tau: float, kept: int) -> None:
    assert accepted_prefix(confidence, tau) == kept


confidences = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8)


@given(confidences, st.floats(0.01, 0.999))
def test_kept_candidates_are_the_longest_confident_run(values: list[float], tau: float) -> None:
    kept = accepted_prefix(values, tau)
    assert 1 <= kept <= len(values)
    assert all(value >= tau for value in values[1:kept])
    assert kept == len(values) or values[kept] < tau


@given(confidences, st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_lower_tau_never_keeps_fewer(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert accepted_prefix(values, low) >= accepted_prefix(values, high)


def confidence_of(name: str, shares: list[list[float]], tokens: list[int]) -> list[float]:
    log_probs = torch.tensor(shares, dtype=torch.float64).log()
    return CONFIDENCES[name](log_probs, torch.tensor(tokens)).tolist()


def test_probability_is_the_chosen_tokens() -> None:
    shares = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]
    assert confidence_of("probability", shares, [0, 2]) == pytest.approx([0.5, 0.2])


def test_margin_is_the_gap_between_the_two_likeliest() -> None:
    assert confidence_of("margin", [[0.3, 0.5, 0.2], [0.4, 0.4, 0.2]], [1, 0]) == pytest.approx(
        [0.2, 0.0]
    )


def test_entropy_confidence_is_the_inverse_perplexity() -> None:
    """1 when certain, 1/n for n equally likely tokens; a zero share counts nothing."""
    shares = [[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1]]
    mixed = math.exp(0.7 * math.log(0.7) + 0.3 * math.log(0.1))
    assert confidence_of("entropy", shares, [0] * 4) == pytest.approx([1, 0.25, 0.5, mixed])


@pytest.mark.parametrize("name", CONFIDENCES)
@given(values=st.lists(st.floats(-40, 40, width=32), min_size=2, max_size=9))
def test_confidences_are_shares(name: str, values: list[float]) -> None:
    """In [0, 1] for the argmax, with a token excluded at -inf as [MASK] is."""
    logits = torch.tensor([[*values, -math.inf]])
    log_probs = logits.log_softmax(-1)
    value = CONFIDENCES[name](log_probs, logits.argmax(-1)).item()
    assert -1e-6 <= value <= 1 + 1e-6


@pytest.mark.parametrize("tau", [1e-9, 0.5, 1, 1.0])
def test_tau_in_range(tau: float) -> None:
    check_tau(tau)


@pytest.mark.parametrize("tau", [0, -0.5, 1.01, math.inf, NAN])
def test_tau_out_of_range(tau: float) -> None:
    with pytest.raises(InputError, match=r"above 0 and at most 1 \(1 = one token a step\)"):
        check_tau(tau)
