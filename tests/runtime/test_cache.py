"""Rollback is a cursor: any history of steps gives what a fresh forward gives (FAULTS 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import build_model, build_runner, full_logits
from marslm.models.tiny import ARCHITECTURES
from marslm.runtime.cache import SlotCache
from marslm.runtime.window import Window
from marslm.runtime.work import Work

MODELS = {name: build_model(name, seed=8) for name in ARCHITECTURES}
MASK = MODELS["llama"].mask_token_id

tokens = st.integers(0, 255)


@dataclass
class Step:
    """Pending tokens and a window, and how many of its leading drafts turn out to be real text.

    settled: how many of the real tokens the cursor moves over; the others are fed once more.
    """

    pending: list[int]
    drafts: list[int]
    masks: int
    kept: int
    lag: int


@st.composite
def steps(draw: st.DrawFn) -> Step:
    drafts = draw(st.lists(tokens, max_size=3))
    return Step(
        pending=draw(st.lists(tokens, min_size=1, max_size=4)),
        drafts=drafts,
        masks=draw(st.integers(0, 3)),
        kept=draw(st.integers(0, len(drafts))),
        lag=draw(st.integers(0, 2)),
    )


@dataclass
class Request:
    """What a request has fed: its real text, and how much of it the cursor covers."""

    slot: int
    text: list[int] = field(default_factory=list)
    cached: int = 0

    def work(self, step: Step) -> Work:
        self.text += step.pending
        window = Window([*step.drafts, *[MASK] * step.masks])
        pending = self.text[self.cached :]
        return Work(self.slot, self.cached, pending, window, len(pending) + len(window))

    def settle(self, step: Step) -> None:
        self.text += step.drafts[: step.kept]
        self.cached = max(self.cached, len(self.text) - step.lag)


@settings(max_examples=25)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(histories=st.lists(st.tuples(st.integers(0, 2), steps()), min_size=1, max_size=8))
def test_any_history_gives_the_logits_of_a_fresh_forward(
    architecture: str, histories: list[tuple[int, Step]]
) -> None:
    """Three requests take turns; slot 1's request is replaced halfway by a new one."""
    model = MODELS[architecture]
    runner, _ = build_runner(model, slots=3)
    requests = [Request(slot) for slot in range(3)]
    for number, (which, step) in enumerate(histories):
        if number == len(histories) // 2:
            requests[1] = Request(1)
        request = requests[which]
        work = request.work(step)
        logits = runner.forward([work])[0]
        whole = full_logits(model, [*request.text, *work.window.tokens])
        torch.testing.assert_close(logits, whole[work.first_cell :], rtol=0, atol=1e-9)
        request.settle(step)


@settings(max_examples=25)
@given(
    works=st.lists(
        st.tuples(st.lists(tokens, min_size=1, max_size=20), st.lists(tokens, max_size=4)),
        min_size=1,
        max_size=6,
    ),
    order=st.randoms(use_true_random=False),
    wanted=st.integers(0, 3),
)
def test_requests_of_any_widths_share_a_forward(
    works: list[tuple[list[int], list[int]]], order: object, wanted: int
) -> None:
    """Narrow and wide ones, in slots with gaps, over a cache full of garbage."""
    model = MODELS["qwen3"]
    runner, cache = build_runner(model, slots=12)
    for keys, values in cache.readers(slice(0, 12), cache.max_length):
        keys.fill_(1e3)
        values.fill_(1e3)
    slots = list(range(12))
    order.shuffle(slots)
    batch = [
        Work(slot, 0, prompt, Window(window), min(wanted, len(prompt) + len(window)))
        for slot, (prompt, window) in zip(slots, works, strict=False)
    ]
    results = runner.forward(batch)
    assert len(results) == len(batch)
    for work, logits in zip(batch, results, strict=True):
        whole = full_logits(model, work.tokens)
        expected = whole[len(whole) - work.wanted :]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


def make_cache(slots: int) -> SlotCache:
    return SlotCache(
        layers=1,
        slots=slots,
        kv_heads=2,
        max_length=4,
        head_dim=3,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def test_the_lowest_free_slot_is_taken() -> None:
    cache = make_cache(3)
    assert [cache.take_slot() for _ in range(3)] == [0, 1, 2]
    assert cache.free_slots == 0
    cache.release_slot(2)
    cache.release_slot(0)
    assert (cache.take_slot(), cache.take_slot()) == (0, 2)


def test_a_slot_cannot_be_released_twice() -> None:
    cache = make_cache(2)
    cache.release_slot(cache.take_slot())
    with pytest.raises(AssertionError):
        cache.release_slot(0)


def test_rows_are_written_where_they_belong() -> None:
    cache = make_cache(3)
    rows = torch.arange(24.0).view(2, 4, 3) + 1
    cache.writers(torch.tensor([2, 0]), torch.tensor([1, 3]))[0](rows[:, :2], rows[:, 2:])
    keys, values = cache.readers(slice(0, 3), 4)[0]
    assert torch.equal(keys[2, :, 1], rows[0, :2])
    assert torch.equal(values[2, :, 1], rows[0, 2:])
    assert torch.equal(keys[0, :, 3], rows[1, :2])
    assert torch.equal(values[0, :, 3], rows[1, 2:])
    assert torch.count_nonzero(keys) + torch.count_nonzero(values) == 24
    narrow, _ = cache.readers(slice(1, 3), 2)[0]
    assert torch.equal(narrow, keys[1:3, :, :2])


def test_a_run_of_rows_is_written_like_single_rows() -> None:
    rows = torch.arange(24.0).view(2, 4, 3) + 1
    run, single = make_cache(3), make_cache(3)
    run.run_writers(1, 2, rows=2)[0](rows[:, :2], rows[:, 2:])
    single.writers(torch.tensor([1, 1]), torch.tensor([2, 3]))[0](rows[:, :2], rows[:, 2:])
    for written, expected in zip(
        run.readers(slice(0, 3), 4)[0], single.readers(slice(0, 3), 4)[0], strict=True
    ):
        assert torch.equal(written, expected)
        assert torch.count_nonzero(written) == 12
