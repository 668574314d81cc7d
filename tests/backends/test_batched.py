"""The rules on tensors are the rules of `Drafter`, request by request."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marslm.backends.vllm.batched import Limits, forced_rows, leave_one, next_windows
from marslm.backends.vllm.drafter import Drafter, Step
from marslm.backends.vllm.drafts import force
from marslm.backends.vllm.params import MarsParams

MASK, VOCABULARY, WIDTH = 9, 10, 4

windows = st.builds(
    lambda drafts, masks: ([*drafts, *[MASK] * masks])[:WIDTH],
    st.lists(st.integers(0, 8), max_size=3),
    st.integers(0, 4),
)
requests = st.lists(st.tuples(windows, st.integers(0, 4), st.booleans()), min_size=1, max_size=4)


def layout(all_windows: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    tokens = [t for window in all_windows for t in (0, *window)]
    places = [p for window in all_windows for p in range(len(window) + 1)]
    starts = [0]
    for window in all_windows:
        starts.append(starts[-1] + len(window) + 1)
    return torch.tensor(tokens), torch.tensor(places), torch.tensor(starts)


@given(requests, st.integers(0, 10**6))
def test_next_windows(batch: list[tuple[list[int], int, bool]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens, place, starts = layout([window for window, _, _ in batch])
    logits = 4 * torch.randn(len(tokens), VOCABULARY, generator=generator)
    logits[:, MASK] = -torch.inf
    params = [MarsParams("tau", 0.3 if odd else 0.6, window=4 if odd else 3) for *_, odd in batch]
    kept = [min(kept, len(window)) for window, kept, _ in batch]
    drafter = Drafter(MASK, WIDTH)
    steps = [Step(str(i), params[i], batch[i][0]) for i in range(len(batch))]
    drafter.read(steps, kept, logits)
    limits = Limits(
        torch.tensor([each.threshold for each in params]),
        torch.tensor([each.masks for each in params]),
    )
    sampled = torch.tensor(kept) + 1
    found = next_windows(logits, tokens, place, starts, sampled, limits, MASK, WIDTH).tolist()
    for i, window in enumerate(found):
        wanted = drafter.propose(str(i), params[i])
        assert window == wanted + [MASK] * (WIDTH - len(wanted))


@given(requests)
def test_what_is_kept_unread(batch: list[tuple[list[int], int, bool]]) -> None:
    """A proposal that came back whole, one cut short, and one that vLLM replaced."""
    drafter = Drafter(MASK, WIDTH)
    params = MarsParams("tau", 0.5, WIDTH)
    tokens, place, _ = layout([window for window, _, _ in batch])
    proposed = []
    for i, (window, _, own) in enumerate(batch):
        given_out = window if own else [(t + 1) % 9 for t in window]
        drafter._trusted[str(i)] = given_out
        proposed += [-1, *given_out]
    steps = [Step(str(i), params, window) for i, (window, _, _) in enumerate(batch)]
    logits = torch.randn(len(tokens), VOCABULARY)
    judged = forced_rows(tokens, place, torch.tensor(proposed), MASK)
    found = leave_one(logits, judged, tokens)
    judging = logits[_judging_rows(place)]
    force(judging, *drafter.forced(steps))
    assert torch.equal(found[_judging_rows(place)].argmax(-1), judging.argmax(-1))
    assert judged.sum() == judging.isneginf().any(-1).sum()


def _judging_rows(place: Tensor) -> list[int]:
    return [i for i in range(len(place) - 1) if place[i + 1] == place[i] + 1]
