"""Decoding with narrower weights: exact strategies stay exact among themselves."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch

from helpers import build_model, build_runner, letters, random_prompts, solo, with_random_adapter
from marslm.engine.api import answer_of
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel, load
from marslm.models.quantize import usable
from marslm.models.tiny import ARCHITECTURES
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams
from marslm.runtime.window import Window
from marslm.runtime.work import Work

QUANTIZE = [kind for kind in usable() if kind != "none"]


@pytest.fixture(scope="module")
def fitted(fitted_model: MarsModel) -> MarsModel:
    """The fitted model in float32, from which weights are narrowed."""
    return replace(fitted_model, network=copy.deepcopy(fitted_model.network).float())


@pytest.mark.parametrize("quantize", QUANTIZE)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_follow_float32(architecture: str, quantize: str) -> None:
    """With a mask-only adapter, on rows of masks and others."""
    model = with_random_adapter(build_model(architecture, dtype=torch.float32))
    window, prompt = Window([model.mask_token_id] * 3), random_prompts([12])[0]
    wide, narrow = (
        build_runner(each)[0].forward([Work(0, 0, prompt, window, 15)])[0][:, :256]
        for each in (model, replace(model, quantize=quantize))
    )
    assert narrow.dtype == torch.float32
    assert not torch.equal(wide, narrow)
    assert torch.cosine_similarity(wide, narrow).min() > 0.98


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_clean_rows_are_bit_identical_with_a_mask_only_adapter(quantize: str) -> None:
    plain = replace(build_model("qwen2", dtype=torch.float32), quantize=quantize)
    window, prompt = Window([plain.mask_token_id] * 3), random_prompts([9])[0]
    before, after = (
        build_runner(model)[0].forward([Work(0, 0, prompt, window, 12)])[0]
        for model in (plain, with_random_adapter(plain))
    )
    assert torch.equal(before[:9], after[:9])
    assert not torch.allclose(before[9:, :256], after[9:, :256])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("quantize", QUANTIZE)
@pytest.mark.parametrize("strategy", ["lossless-chain", "lossless-tree", "lossless"])
def test_lossless_writes_what_ar_writes_with_the_same_weights(
    fitted: MarsModel, strategy: str, temperature: float, quantize: str
) -> None:
    model, runs = replace(fitted, quantize=quantize), []
    for length in (2, 9, 30):
        prompt = letters(length, random.Random(length))
        params = SamplingParams(
            strategy=strategy, max_new_tokens=48, temperature=temperature, ignore_eos=True
        )
        answer = solo(model, prompt, params)
        assert answer.ids == solo(model, prompt, replace(params, strategy="ar")).ids
        runs += answer.runs
    assert sum(runs) > 1.1 * len(runs)


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_a_batch_answers_as_each_alone(fitted: MarsModel, quantize: str) -> None:
    model = replace(fitted, quantize=quantize)
    engine = Engine(model, slots=3, token_budget=11, costs=AssumedCosts())
    generator, requests = random.Random(3), []
    for index, length in enumerate((1, 25, 3, 17, 8, 2)):
        params = SamplingParams(
            strategy=("ar", "lossless-chain", "lossless-tree", "mars")[index % 4],
            max_new_tokens=20 + index,
            temperature=0.8 * (index % 2),
            seed=index,
        )
        requests.append(engine.add(letters(length, generator), params))
    for _ in engine.run():
        pass
    for request in requests:
        alone = solo(model, request.tokens[: request.prompt_length], request.params)
        assert answer_of(request).ids == alone.ids


def test_load_narrows(fitted: MarsModel) -> None:
    wide, narrow = load("tiny"), load("tiny", quantize="int8")
    assert (wide.quantize, narrow.quantize) == ("none", "int8")
    params = SamplingParams(strategy="ar", max_new_tokens=4, ignore_eos=True)
    assert len(solo(narrow, [70, 71], params).ids) == 4
