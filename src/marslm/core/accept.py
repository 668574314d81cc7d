"""How many candidates of a step to keep: the threshold tau (paper section 3; METHOD section 3).

Knows nothing about how candidates were chosen or what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from marslm.errors import InputError

Tau: TypeAlias = "float | tuple[float, ...]"
"""An acceptance threshold, or one for each mask of a step."""


def probability(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of the chosen token: the paper's default confidence."""
    return log_probs.gather(-1, tokens[:, None]).squeeze(-1).exp()


def margin(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Return how far the most likely token's probability lies above the second's."""
    top = log_probs.topk(2, dim=-1).values.exp()
    return top[:, 0] - top[:, 1]


def entropy(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Return exp(-H), the inverse perplexity: 1 when certain, 1/n for n equally likely tokens."""
    return log_probs.exp().mul(log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1).exp()


CONFIDENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "probability": probability,
    "margin": margin,
    "entropy": entropy,
}
"""Confidence by name: (log-probabilities [R, V], chosen tokens [R]) -> [R] in [0, 1]."""


def accepted_prefix(confidence: Sequence[float], tau: Tau) -> int:
    """Return how many of a step's candidates to keep, at least 1.

    confidence: of B candidates, candidate 0 first. From the left while confidence >= tau; the first
    candidate is always kept, and what follows the first miss is dropped however confident. tau >= 1
    means one token a step by rule, since a rounded softmax can reach 1.0.
    """
    masks = useful_masks(tau, len(confidence) - 1)
    for mask, value in enumerate(confidence[1 : 1 + masks]):
        if not value >= threshold(tau, mask):
            return 1 + mask
    return 1 + masks


def threshold(tau: Tau, mask: int) -> float:
    """Return the threshold of the candidate that is read from mask number `mask`, the first is 0.

    Masks further than a tau per position tells of have its last.
    """
    return tau[min(mask, len(tau) - 1)] if isinstance(tau, tuple) else tau


def useful_masks(tau: Tau, masks: int) -> int:
    """Return how many of `masks` masks can bring a candidate: those before the first tau of 1."""
    return next((mask for mask in range(masks) if threshold(tau, mask) >= 1), masks)


def check_tau(tau: Tau) -> None:
    """Raise InputError unless 0 < tau <= 1, for each position if there are several."""
    if not all(0 < each <= 1 for each in (tau if isinstance(tau, tuple) else (tau,))) or tau == ():
        raise InputError(f"tau is {tau}: give a value above 0 and at most 1 (1 = one token a step)")
