"""The same rules as `drafter` for all requests at once, on the device and without reading back.

An asynchronous runner never brings a step's tokens to the CPU, so what is kept unread and what is
fed next are computed from tensors. Knows nothing about vLLM.

Rows of a step lie request by request: `place` is 0 at a request's last token and counts its window
entries from 1; `starts` [R + 1] are the rows where requests begin and, at the end, their number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Limits:
    """How each request [R] is decoded.

    threshold: the probability from which a draft is taken. masks: how many masks are read.
    """

    threshold: Tensor
    masks: Tensor


def forced_rows(tokens: Tensor, place: Tensor, proposed: Tensor, mask_token_id: int) -> Tensor:
    """Return which window entries [N] are drafts to be kept unread.

    tokens: the id in each row [N]. proposed: the id that the plugin handed out for it, -1 where
    nothing is to be kept unread. An entry counts if it and all before it are the plugin's own
    drafts.
    """
    entry = place > 0
    breaks = (entry & ((tokens != proposed) | (tokens == mask_token_id))).cumsum(0)
    first = torch.arange(len(tokens), device=tokens.device) - place
    return entry & (breaks == breaks[first])


def leave_one(logits: Tensor, judged: Tensor, tokens: Tensor) -> Tensor:
    """Return logits [N, V] where the row before each entry in `judged` [N] can only be that entry.

    Row i judges entry i + 1.
    """
    rows = judged.roll(-1, 0)[:, None]
    wanted = tokens.clamp(min=0).roll(-1, 0)[:, None]
    others = torch.arange(logits.shape[1], device=logits.device) != wanted
    return logits.masked_fill(rows & others, -torch.inf)


def next_windows(
    logits: Tensor,
    tokens: Tensor,
    place: Tensor,
    starts: Tensor,
    sampled: Tensor,
    limits: Limits,
    mask_token_id: int,
    width: int,
) -> Tensor:
    """Return each request's next window [R, width]: drafts, and masks up to the end.

    logits: [N, V] of the step's rows. sampled: how many tokens each request [R] got. Masks behind a
    rejected draft are not read, as in `drafts.readable_masks`.
    """
    requests, entries = len(starts) - 1, starts.diff() - 1
    owner = torch.repeat_interleave(
        torch.arange(requests, device=tokens.device), entries + 1, output_size=len(tokens)
    )
    masks_so_far = ((place > 0) & (tokens == mask_token_id)).cumsum(0)
    leading = (place > 0) & (masks_so_far == masks_so_far[starts[:-1]][owner])
    drafts = torch.zeros_like(entries).index_add(0, owner, leading.to(entries.dtype))
    readable = (sampled - 1 == drafts) & (entries > drafts)

    highest, choice = logits.float().max(dim=-1)
    confidence = (highest - logits.float().logsumexp(dim=-1)).exp()
    steps = torch.arange(width, device=tokens.device)
    rows = (starts[:-1] + drafts)[:, None] + 1 + steps
    rows = rows.clamp(max=len(tokens) - 1)
    valid = readable[:, None] & (steps < torch.minimum(entries - drafts, limits.masks)[:, None])
    taken = (valid & (confidence[rows] >= limits.threshold[:, None])).cumprod(1)
    count = taken.sum(1).clamp(max=width - 1)
    return torch.where(steps < count[:, None], choice[rows], mask_token_id)
