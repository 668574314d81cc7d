"""The log-probabilities that a caller may ask for beside each token.

They are the model's own, before temperature, penalties and truncation. Knows nothing about how the
token was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenLogprobs:
    """One token's log-probability, and the likeliest tokens at its place with theirs, best first.

    The token itself need not be among them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def read_logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """Return the log-probabilities of `tokens` [R] in `logits` [R, V], with `count` others each."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    log_probs = torch.log_softmax(wide, dim=-1)
    best = log_probs.topk(count, dim=-1)
    return [
        TokenLogprobs(token, float(row[token]), tuple(zip(ids, values, strict=True)))
        for token, row, ids, values in zip(
            tokens, log_probs, best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]
