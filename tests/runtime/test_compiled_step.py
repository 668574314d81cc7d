"""The compiled step: torch's results, and every row by itself, bit for bit."""

from __future__ import annotations

import functools
import random
from ctypes import c_int
from dataclasses import replace

import pytest
import torch

from helpers import build_model, build_runner, letters, random_prompts, with_random_adapter
from marslm.engine.api import answer_of
from marslm.engine.engine import Engine
from marslm.models import compiled_product
from marslm.models.loading import MarsModel
from marslm.models.quantize import Quantize
from marslm.models.tiny import ARCHITECTURES
from marslm.runtime import compiled_step
from marslm.runtime.cache import SlotCache
from marslm.runtime.compiled_layout import SPAN
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams
from marslm.runtime.runner import Runner
from marslm.runtime.window import Window
from marslm.runtime.work import Work

TREE = [-1, 0, -1, 2, 0, 1]


@functools.cache
def model_of(architecture: str, quantize: Quantize) -> MarsModel:
    """Return a model with a random adapter, whose sizes C takes."""
    model = build_model(architecture, hidden_size=64, dtype=torch.float32)
    return replace(with_random_adapter(model), quantize=quantize)


MASK = model_of("llama", "none").mask_token_id

needs_kernel = pytest.mark.skipif(
    build_runner(model_of("llama", "int8"))[0].compiled is None,
    reason="no C compiler, or a CPU without AVX2",
)
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
each_kind = pytest.mark.parametrize("quantize", ["none", "int8"])


def windows() -> list[Window]:
    """Return nothing, masks, drafts and masks, a tree, a block both ways, and more than C has."""
    return [
        Window(),
        Window([MASK] * 3),
        Window([7, 9, MASK, MASK]),
        Window([7, 9, 11, MASK, MASK, 12], parents=TREE),
        Window([7, MASK, 8, MASK], bidirectional=True),
        Window([MASK] * 70),
    ]


def compiled_runner(model: MarsModel, slots: int = 1) -> tuple[Runner, SlotCache]:
    runner, cache = build_runner(model, slots=slots, max_length=256, pack=True)
    assert runner.compiled is not None
    return runner, cache


def all_rows(slot: int, first_cell: int, pending: list[int], window: Window) -> Work:
    return Work(slot, first_cell, pending, window, len(pending) + len(window))


@needs_kernel
@each_architecture
@each_kind
def test_logits_are_torchs(architecture: str, quantize: Quantize) -> None:
    """In int8, sums in another order move a few levels by one, and nothing else."""
    model = model_of(architecture, quantize)
    plain, cache = build_runner(model, max_length=256)
    compiled, own_cache = compiled_runner(model)
    plain.compiled = None
    (prompt,) = random_prompts([90])
    least = 0.995 if quantize == "int8" else 1 - 1e-5
    for window in windows():
        for work in (all_rows(0, 0, prompt, window), all_rows(0, 90, [5, 6], window)):
            expected, found = (each.forward([work])[0][:, :256] for each in (plain, compiled))
            assert torch.cosine_similarity(expected, found).min() > least
    first, second = (each._cells[:, :, :, :90] for each in (cache, own_cache))
    close = 0.01 if quantize == "int8" else 1e-4
    layers = slice(0, 1) if quantize == "int8" else slice(None)
    torch.testing.assert_close(first[layers], second[layers], rtol=close, atol=close)


@needs_kernel
@each_architecture
@each_kind
def test_a_row_depends_on_what_it_sees_alone(architecture: str, quantize: Quantize) -> None:
    """The same bits for a text in one piece, row by row, before any window and in a batch."""
    runner, _ = compiled_runner(model_of(architecture, quantize), slots=3)
    text, others = random_prompts([150, 140])
    whole = runner.forward([all_rows(1, 0, text, Window())])[0]
    runner.forward([all_rows(0, 0, others, Window())])
    for start in (130, 128, 127, 90, 1, 0):  # what lies behind is garbage then
        for window in windows():
            for count in (1, 2, 9):
                mine = all_rows(1, start, text[start : start + count], window)
                beside = all_rows(0, 100, others[100:103], Window([MASK] * count))
                for works in ([mine], [beside, mine]):
                    found = runner.forward(works)[-1]
                    assert torch.equal(found[:count], whole[start : start + count])


@needs_kernel
@each_kind
@pytest.mark.parametrize("rows", [3, 40])
def test_windows_do_not_depend_on_a_batch_nor_on_threads(rows: int, quantize: Quantize) -> None:
    runner, _ = compiled_runner(model_of("qwen3", quantize), slots=2)
    texts = random_prompts([60, 33])
    runner.forward([all_rows(slot, 0, text, Window()) for slot, text in enumerate(texts)])
    for window in windows():
        works = [
            all_rows(0, 60, texts[1][:rows], window),
            all_rows(1, 33, texts[0][:rows], Window([MASK, 4, MASK])),
        ]
        alone = [runner.forward([work])[0] for work in works]
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for together in (works, works[::-1]):
                for work, found in zip(together, runner.forward(together), strict=True):
                    assert torch.equal(found, alone[work.slot])


@needs_kernel
def test_threads_that_share_rows_and_not_spans_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for a context for whose spans there is no room."""
    runner, _ = compiled_runner(model_of("qwen2", "none"), slots=2)
    texts = random_prompts([200, 33])
    runner.forward([all_rows(slot, 0, text, Window()) for slot, text in enumerate(texts)])
    for window in windows()[:-1]:
        works = [all_rows(0, 200, [4, 5], window), all_rows(1, 33, [6], window)]
        by_span = runner.forward(works)
        with monkeypatch.context() as patch:
            patch.setattr(compiled_step, "_MOST_PARTS", 0)
            by_row = runner.forward(works)
        assert all(map(torch.equal, by_span, by_row))


@needs_kernel
def test_c_and_python_agree_on_sizes() -> None:
    assert compiled_product.constant("piece") == compiled_product.MOST_ROWS
    assert compiled_product.constant("most_parts") == compiled_product.MOST_PARTS
    library = compiled_step._library()
    assert library is not None
    assert c_int.in_dll(library, "marslm_span").value == SPAN


@needs_kernel
@each_kind
def test_cells_behind_a_row_are_not_read(quantize: Quantize) -> None:
    runner, cache = compiled_runner(model_of("llama", quantize))
    (text,) = random_prompts([20])
    window = Window([7, 9, 11, MASK, MASK, 12], parents=TREE)
    runner.forward([all_rows(0, 0, text, Window())])
    before = runner.forward([all_rows(0, 20, [4], window)])[0]
    cache._cells[:, :, :, 20:] = 1e6
    assert torch.equal(runner.forward([all_rows(0, 20, [4], window)])[0], before)


@needs_kernel
@each_kind
def test_a_row_of_a_tree_is_that_of_its_branch(quantize: Quantize) -> None:
    runner, _ = compiled_runner(model_of("qwen2", quantize))
    (text,) = random_prompts([20])
    runner.forward([all_rows(0, 0, text, Window())])
    tree = runner.forward([all_rows(0, 20, [4], Window([7, 9, 11, MASK], parents=[-1, 0, -1, 2]))])
    chain = runner.forward([all_rows(0, 20, [4], Window([11, MASK]))])
    difference = tree[0][[0, 3, 4], :256] - chain[0][:, :256]
    assert difference[0].abs().max() == 0
    assert difference.abs().max() < 0.1 * chain[0][:, :256].abs().max()


@needs_kernel
def test_larger_trees_are_left_to_torch() -> None:
    runner, _ = compiled_runner(model_of("llama", "int8"))
    assert runner.compiled is not None
    star = Window([MASK] * 65, parents=[-1] * 65)
    assert runner.compiled.hidden([all_rows(0, 0, [4], star)]) is None
    assert runner.forward([all_rows(0, 0, [4], star)])[0].shape[0] == 66


@needs_kernel
@each_kind
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_batch_in_chunks_writes_what_ar_writes_alone(
    temperature: float, quantize: Quantize
) -> None:
    """Prompts in pieces, slots used again and every exact strategy: exact to the last bit."""
    model = model_of("llama", quantize)
    engine = Engine(model, slots=2, token_budget=11, costs=AssumedCosts())
    requests = []
    for index, length in enumerate((3, 25, 17, 40)):
        strategy = ("lossless", "lossless-chain", "lossless-tree", "ar")[index]
        params = SamplingParams(
            strategy=strategy, max_new_tokens=30, temperature=temperature, ignore_eos=True
        )
        requests.append(engine.add(letters(length, random.Random(index)), params))
    for _ in engine.run():
        pass
    for request in requests:
        prompt = request.tokens[: request.prompt_length]
        alone = Engine(model, slots=1, costs=AssumedCosts())
        sequence = alone.add(prompt, replace(request.params, strategy="ar"))
        for _ in alone.run():
            pass
        assert answer_of(request).ids == answer_of(sequence).ids


def test_other_sizes_and_plain_linears_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    small = build_model("llama", dtype=torch.float32)  # heads of 8
    assert build_runner(replace(small, quantize="int8"))[0].compiled is None
    assert build_runner(model_of("llama", "none"), pack=False)[0].compiled is None
    exact = build_model("llama", hidden_size=64, dtype=torch.float64)
    assert build_runner(exact, pack=True)[0].compiled is None
    monkeypatch.setattr(compiled_step, "_library", lambda: None)
    runner = build_runner(model_of("llama", "int8"))[0]
    assert runner.compiled is None
    assert runner.forward([all_rows(0, 0, [4, 5], Window())])[0].isfinite().sum() > 0
