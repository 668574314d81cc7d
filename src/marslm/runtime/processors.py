"""What shapes the distribution of one token before it is drawn.

Two kinds: `truncate` and its like look at logits alone and take any number of rows; a `TextRule`
also looks at the text that the token would follow, so rows go through it one at a time, each row's
token being added before the next. Knows nothing about drawing, nor about where the text came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from marslm.runtime.constraint import Constraint
from marslm.runtime.params import SamplingParams

_FIRST_NUCLEUS = 64

_YIELDING_BAN = -1e6
"""A ban where the answer follows a grammar: no token that is merely unlikely comes near it, and if
the grammar admits banned tokens alone, they still have an order."""


class TextRule(Protocol):
    """A change of logits that depends on the text so far."""

    def apply(self, scores: Tensor) -> Tensor:
        """Return the changed logits [1, V] of the token that would come next."""

    def add(self, token: int) -> None:
        """Let the text grow by one token."""


class Penalties:
    """Repetition penalty over prompt and answer; frequency and presence penalties over the answer.

    The first is that of CTRL (arXiv 1909.05858), the others are those of OpenAI's interface.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], like: Tensor
    ) -> None:
        """Count the tokens so far; `like` [..., V] gives vocabulary and device."""
        self._params = params
        size, device = like.shape[-1], like.device
        self._prompt = torch.bincount(torch.tensor(prompt, device=device).long(), minlength=size)
        self._answer = torch.bincount(torch.tensor(answer, device=device).long(), minlength=size)

    def apply(self, scores: Tensor) -> Tensor:
        """Make repeated tokens less likely."""
        params, in_answer = self._params, self._answer > 0
        if params.repetition_penalty != 1:
            penalty = params.repetition_penalty
            penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
            scores = torch.where(in_answer | (self._prompt > 0), penalised, scores)
        per_time, once = params.frequency_penalty, params.presence_penalty
        return scores - per_time * self._answer - once * in_answer

    def add(self, token: int) -> None:
        """Count a token of the answer."""
        self._answer[token] += 1


class EndBan:
    """No end token before `min_tokens`."""

    def __init__(self, min_tokens: int, end_token_ids: frozenset[int], written: int) -> None:
        """`written`: tokens that the answer has already."""
        self._missing = min_tokens - written
        self._end_token_ids = sorted(end_token_ids)

    def apply(self, scores: Tensor) -> Tensor:
        """Exclude end tokens while the answer is too short."""
        if self._missing <= 0 or not self._end_token_ids:
            return scores
        ends = torch.tensor(self._end_token_ids, device=scores.device)
        return scores.index_fill(-1, ends, -torch.inf)

    def add(self, token: int) -> None:
        """Count a token."""
        self._missing -= 1


class Constrained:
    """Only tokens that the grammar admits."""

    def __init__(self, constraint: Constraint, answer: list[int]) -> None:
        """Start after `answer`, which the grammar admits."""
        self._constraint = constraint
        self._answer = list(answer)

    def apply(self, scores: Tensor) -> Tensor:
        """Exclude all others."""
        allowed = self._constraint.allowed(self._answer).to(scores.device)
        return scores.masked_fill(~allowed, -torch.inf)

    def add(self, token: int) -> None:
        """Follow the answer."""
        self._answer.append(token)


def add_bias(scores: Tensor, params: SamplingParams) -> Tensor:
    """Return scores [R, V] with `logit_bias` added; an excluded token stays excluded.

    A ban does not exclude but yields where a grammar admits nothing else.
    """
    if not params.logit_bias:
        return scores
    tokens = torch.tensor(list(params.logit_bias), device=scores.device)
    values = torch.tensor(list(params.logit_bias.values()), dtype=scores.dtype)
    if params.constrained:
        values = values.clamp(min=_YIELDING_BAN)
    return scores.index_add(-1, tokens, values.to(scores.device).expand(len(scores), -1))


def truncate(scores: Tensor, params: SamplingParams) -> Tensor:
    """Return scores [R, V] with what top_k, top_p and min_p leave out at -inf, in this order."""
    if 0 < params.top_k < scores.shape[-1]:
        scores = _at_least(scores, scores.topk(params.top_k).values[:, -1:])
    if params.top_p < 1:
        scores = _at_least(scores, _nucleus_edge(scores, params.top_p))
    if params.min_p > 0:
        scores = _at_least(scores, scores.amax(-1, keepdim=True) + math.log(params.min_p))
    return scores


def _at_least(scores: Tensor, edge: Tensor) -> Tensor:
    """Exclude what lies below `edge` [R, 1]; tokens that tie with it stay, whatever their order."""
    return scores.masked_fill(scores < edge, -torch.inf)


def _nucleus_edge(scores: Tensor, share: float) -> Tensor:
    """Return the score [R, 1] of the last token that top_p keeps.

    The fewest likeliest tokens that reach `share` are kept (arXiv 1904.09751). Sorting a whole
    vocabulary costs more than a layer of a small model, and a few tokens nearly always suffice.
    """
    total = scores.logsumexp(-1, keepdim=True)
    size = scores.shape[-1]
    width = min(_FIRST_NUCLEUS, size)
    while True:
        top = scores.topk(width).values
        reached = (top - total).exp().cumsum(-1)
        if width == size or bool((reached[:, -1] >= share).all()):
            break
        width = min(8 * width, size)
    last = (reached < share).sum(-1, keepdim=True).clamp(max=width - 1)
    return top.gather(-1, last)
