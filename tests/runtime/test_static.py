"""Forwards in fixed shapes equal ragged ones, and can be recorded and replayed."""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from helpers import build_model, build_runner, with_random_adapter
from marslm.core.masks import bit_mask, window_mask
from marslm.models.loading import MarsModel
from marslm.models.tiny import ARCHITECTURES
from marslm.runtime.cache import SlotCache
from marslm.runtime.decoder import Decoder
from marslm.runtime.runner import Runner
from marslm.runtime.static import Bucket, Capture, Compute, StaticForward, bucket_for, eager
from marslm.runtime.window import Window
from marslm.runtime.work import Work

PLAIN = {name: build_model(name, seed=8) for name in ARCHITECTURES}
ADAPTED = {name: with_random_adapter(model, seed=3) for name, model in PLAIN.items()}
MASK = PLAIN["llama"].mask_token_id

tokens = st.integers(0, 255)


def record(compute: Compute) -> Compute:
    """Record the tensor operations of a computation and replay those alone, as a GPU does.

    Whatever Python decided while recording is frozen, and so are the addresses of all tensors.
    """
    return make_fx(lambda: compute())()  # type: ignore[no-any-return]  # noqa: PLW0108


def with_static(runner: Runner, cache: SlotCache, capture: Capture) -> StaticForward:
    """Let a runner use fixed shapes, as it does on a GPU."""
    runner.static = StaticForward(runner.decoder, cache, MASK, capture)
    return runner.static


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Drafts and masks: a chain, a tree, or a block that sees itself both ways."""
    entries = draw(st.lists(st.one_of(st.just(MASK), tokens), max_size=9))
    kind = draw(st.sampled_from(["chain", "tree", "both ways"]))
    if kind == "tree":
        return Window(entries, [draw(st.integers(-1, entry - 1)) for entry in range(len(entries))])
    return Window(entries, bidirectional=kind == "both ways")


@st.composite
def works(draw: st.DrawFn, slot: int = 0) -> Work:
    pending = draw(st.lists(tokens, min_size=1, max_size=4))
    window = draw(windows())
    wanted = draw(st.integers(0, len(pending) + len(window)))
    return Work(slot, draw(st.integers(0, 20)), pending, window, wanted)


@given(st.lists(works(), min_size=1, max_size=3), st.integers(34, 70))
def test_bits_say_who_sees_whom_as_the_mask_does(batch: list[Work], keys: int) -> None:
    width = max(len(work.tokens) for work in batch)
    seen, sees = torch.ones(2, len(batch), width, dtype=torch.int64)
    for place, work in enumerate(batch):
        seen[place, : len(work.tokens)] = torch.tensor(work.seen)
        sees[place, : len(work.tokens)] = torch.tensor(work.sees)
    trees = [tree for place, work in enumerate(batch) if (tree := work.tree(place))]
    expected = window_mask(seen, keys, trees)
    found = bit_mask(torch.tensor([work.first_cell for work in batch]), sees, keys)
    for place, work in enumerate(batch):
        rows = len(work.tokens)
        assert torch.equal(found[place, :, :rows], expected[place, :, :rows])


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, list[int], Window]]]:
    """Steps of some of six slots: pending tokens and a window each."""
    step = st.lists(
        st.tuples(st.integers(0, 5), st.lists(tokens, min_size=1, max_size=5), windows()),
        min_size=1,
        max_size=5,
        unique_by=lambda each: each[0],
    )
    return draw(st.lists(step, min_size=1, max_size=5))


def assert_equal_to_ragged(
    model: MarsModel, history: list[list[tuple[int, list[int], Window]]], capture: Capture
) -> StaticForward:
    """Run a history in both layouts, over caches full of garbage, and compare logits and cells."""
    (ragged, plain_cache), (runner, cache) = pairs = [build_runner(model, slots=6) for _ in "ab"]
    for _, each in pairs:
        each._cells.fill_(0.7)
    static = with_static(runner, cache, capture)
    cached = [0] * 6
    for step in history:
        batch = [
            Work(slot, cached[slot], pending, window, len(pending) + len(window))
            for slot, pending, window in step
        ]
        expected, found = ragged.forward_with_hidden(batch), runner.forward_with_hidden(batch)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        for work in batch:
            cached[work.slot] += len(work.pending)
    # Nothing was written to but the requests' own cells and padding's, which no row can see.
    real, padded = plain_cache._cells[:, :, :, :-1], cache._cells[:, :, :, :-1]
    torch.testing.assert_close(padded, real, rtol=0, atol=1e-9)
    return static


@settings(max_examples=25)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(history=histories(), adapted=st.booleans())
def test_any_history_equals_the_ragged_layout(
    architecture: str, history: list[list[tuple[int, list[int], Window]]], adapted: bool
) -> None:
    """Requests of any widths, in any slots, with or without masks."""
    assert_equal_to_ragged((ADAPTED if adapted else PLAIN)[architecture], history, eager)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_recorded_step_serves_every_step_of_its_bucket(architecture: str) -> None:
    """Nothing that Python decided when a step was recorded may hold for the next one."""
    both_ways = Window([4, MASK, 5], bidirectional=True)
    history = [
        [(0, [1, 2, 3], Window([MASK])), (3, [7], Window([9]))],
        [(2, [8, 9], Window()), (3, [6], Window([MASK, 5, 1], parents=[-1, 0, -1]))],
        [(3, [5], both_ways), (1, [2], Window([MASK]))],
        [(0, [1], Window([2, 3, MASK])), (3, [4, 5], Window([MASK]))],
        [(0, [1], Window()), (2, [4], Window())],
        [(3, [1], Window()), (1, [4], Window())],
    ]
    for model in (PLAIN[architecture], ADAPTED[architecture]):
        static = assert_equal_to_ragged(model, history, record)
        assert len(static.buckets) <= 3 < len(history)


def test_one_token_rows_do_not_depend_on_an_adapter() -> None:
    """Bit by bit, beside rows of masks too."""
    results = []
    for model in (PLAIN["qwen2"], ADAPTED["qwen2"]):
        runner, cache = build_runner(model, slots=2)
        with_static(runner, cache, eager)
        batch = [Work(0, 0, [1, 2, 3], Window([MASK]), 4), Work(1, 0, [4], Window(), 1)]
        results.append(runner.forward(batch))
    (plain, alone), (adapted, beside) = results
    assert torch.equal(plain[:3], adapted[:3])
    assert not torch.equal(plain[3], adapted[3])
    assert torch.equal(alone, beside)


def bucket(batch: ListOf[Work], *, slots: int = 8, length: int = 1000) -> Bucket | None:
    cache = SlotCache(
        layers=1,
        slots=slots,
        kv_heads=1,
        max_length=length,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return bucket_for(batch, cache, masks=False)


def narrow(slot: int, first_cell: int = 0, rows: int = 1) -> Work:
    return Work(slot, first_cell, [0] * rows, Window(), 1)


def test_buckets_are_few_and_hold_their_step() -> None:
    assert bucket([narrow(0)]) == Bucket(1, 1, 1, 128, masks=False)
    # Nearly uniform requests: every row in its place, three of them padding.
    assert bucket([narrow(0), narrow(1), narrow(3)]) == Bucket(4, 4, 1, 128, masks=False)
    assert bucket([narrow(0, rows=3), narrow(1, rows=2)]) == Bucket(8, 2, 4, 128, masks=False)
    # One wide among many narrow: linear layers are not padded to it.
    uneven = [narrow(0, rows=9), *(narrow(slot) for slot in range(1, 8))]
    assert bucket(uneven) == Bucket(16, 8, 16, 128, masks=False)
    assert bucket([narrow(5)], slots=6) == Bucket(1, 6, 1, 128, masks=False)
    assert bucket([narrow(0, 300)]) == Bucket(1, 1, 1, 512, masks=False)
    assert bucket([narrow(0, 600)]) == Bucket(1, 1, 1, 1024, masks=False)
    assert bucket([narrow(0, 600)], length=700) == Bucket(1, 1, 1, 768, masks=False)


def test_what_fits_no_bucket_is_laid_out_as_it_comes() -> None:
    assert bucket([narrow(0, rows=16)]) is not None
    assert bucket([narrow(0, rows=17), narrow(1)]) is None
    assert bucket([narrow(0, 126)], length=128) is not None
    assert bucket([narrow(0, 127)], length=128) is None
    (ragged, _), (runner, cache) = (build_runner(PLAIN["llama"], slots=2) for _ in range(2))
    static = with_static(runner, cache, eager)
    batch = [Work(1, 0, list(range(30)), Window(), 2), Work(0, 0, [1], Window([2]), 2)]
    for ours, theirs in zip(runner.forward(batch), ragged.forward(batch), strict=True):
        assert torch.equal(ours, theirs)
    assert static.buckets == []


def test_a_bucket_is_captured_once() -> None:
    captured: list[Tensor] = []

    def capture(compute: Compute) -> Compute:
        captured.append(compute())
        return compute

    runner, cache = build_runner(PLAIN["llama"])
    with_static(runner, cache, capture)
    for cell, token in enumerate([5, 6, 7, 8]):
        runner.forward([Work(0, cell, [token], Window(), 1)])
    assert len(captured) == 1


def move_elsewhere(model: MarsModel) -> None:
    """Move a model to a device of its own, in bfloat16; call it with fake tensors on."""
    network = model.network
    for module in network.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                there = torch.empty(weight.shape, dtype=torch.bfloat16, device="meta")
                module._parameters[name] = torch.nn.Parameter(there, requires_grad=False)
        for name, buffer in list(module._buffers.items()):
            module._buffers[name] = torch.empty(buffer.shape, device="meta")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_reads_nothing_back_and_stays_on_its_device(architecture: str) -> None:
    """With fake tensors, which have no values: reading one raises an error.

    So do shapes that depend on values, and operations over two devices. That is what recording a
    graph asks for, and what each launched operation would have to wait for.
    """
    model = with_random_adapter(build_model(architecture), seed=3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        move_elsewhere(model)
        decoder = Decoder(model, max_length=200)
        static = StaticForward(decoder, decoder.new_cache(4), MASK)
        tree = Window([5, MASK, MASK], parents=[-1, 0, -1])
        found = static.hidden([Work(0, 3, [4], tree, 4), Work(2, 150, [4], Window(), 1)])
        assert found is not None
        logits = decoder.logits(found)
        assert logits.shape == (5, model.network.config.vocab_size)
        assert (logits.device.type, logits.dtype) == ("meta", torch.bfloat16)
        with pytest.raises(DataDependentOutputException):
            logits.argmax().item()
