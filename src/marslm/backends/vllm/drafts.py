"""What a step proposes and what is read from it: pure functions, no vLLM.

A step of a request feeds [last token, drafts d1..dk, masks]. Rows 0..k-1 judge the drafts, row k
is plain one-token decoding after them, and the rows of the masks, if every draft was kept, are
where the next drafts are read. In mode tau the drafts passed their threshold when they were
read, so they are kept unread: the same forward (METHOD sections 3 and 6).
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import torch
from torch import Tensor


def proposal(drafts: ListOf[int], masks: int, mask_token_id: int, width: int) -> list[int]:
    """Return [drafts, masks] for one step, at most `width` long and with at least one mask."""
    window = [*drafts[: width - 1], *[mask_token_id] * masks]
    return window[:width]


def leading_drafts(window: ListOf[int], mask_token_id: int) -> int:
    """Return how many entries stand before the first mask."""
    return next((i for i, token in enumerate(window) if token == mask_token_id), len(window))


def readable_masks(window: ListOf[int], kept: int, mask_token_id: int) -> range:
    """Return which rows of a request hold new drafts; row 0 is its last token's.

    kept: how many window entries were accepted. Masks behind a rejected draft stood after a text
    that was not kept, so nothing is read from them.
    """
    drafts = leading_drafts(window, mask_token_id)
    return range(drafts + 1, len(window) + 1) if kept == drafts else range(0)


def most_likely(logits: Tensor) -> tuple[list[int], list[float]]:
    """Return the most likely token of each row [R, V] and its probability."""
    highest, tokens = logits.float().max(dim=-1)
    probabilities = (highest - logits.float().logsumexp(dim=-1)).exp()
    return tokens.tolist(), probabilities.tolist()


def confident_prefix(
    tokens: ListOf[int], probabilities: ListOf[float], threshold: float
) -> list[int]:
    """Return the tokens from the left that reach the threshold, up to the first that does not."""
    taken = 0
    while taken < len(tokens) and probabilities[taken] >= threshold:
        taken += 1
    return list(tokens[:taken])


def own_drafts(window: ListOf[int], proposed: ListOf[int], mask_token_id: int) -> int:
    """Return how many leading drafts of a window are the plugin's own, given what it proposed.

    vLLM may cut a proposal at its end, and near the length limit it puts token 0 in its place for
    everybody: such a window is not the proposal's beginning, and none of it is ours.
    """
    ours = list(proposed[: len(window)]) == list(window)
    return leading_drafts(window, mask_token_id) if ours else 0


def force(logits: Tensor, rows: ListOf[int], tokens: ListOf[int]) -> None:
    """Leave one token possible in each of the given rows [R, V], in place.

    A token that a request has ruled out (by `min_tokens`, say) stays impossible: such a row is left
    as it is, so the draft is verified and rejected.
    """
    index = torch.tensor(rows, dtype=torch.long, device=logits.device)
    wanted = torch.tensor(tokens, dtype=torch.long, device=logits.device)[:, None]
    before = logits[index]
    alone = torch.full_like(before, -torch.inf).scatter_(1, wanted, 0)
    logits[index] = torch.where(before.gather(1, wanted).isneginf(), before, alone)
