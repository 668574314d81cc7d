"""Answers do not depend on the layout: steps in fixed shapes write the same tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence as ListOf
from dataclasses import replace

import pytest

from helpers import letters, random_prompts, solo, with_random_adapter
from marslm.engine.api import Answer, answer_of
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams
from marslm.runtime.static import Bucket, StaticForward

LENGTHS = (1, 40, 3, 17, 16, 2, 29, 8)
STRATEGIES = ("ar", "mars", "lossless-chain", "lossless-tree", "lossless", "jacobi")


def params(index: int, strategy: str) -> SamplingParams:
    return SamplingParams(
        strategy=strategy,
        max_new_tokens=(5, 31, 1, 24, 18, 33, 12, 27)[index],
        temperature=(0.0, 0.0, 0.8, 0.0, 1.2, 0.6, 0.0, 0.0)[index],
        seed=index,
        tau=(0.3, 0.5, 0.9, 0.05, 0.4, 0.2, 0.6, 1.0)[index],
        block=(None, 3, 4, 6, None, 2, 5, 4)[index],
        ignore_eos=True,
    )


def run_static(
    model: MarsModel,
    requests: ListOf[tuple[list[int], SamplingParams]],
    *,
    slots: int = 3,
    max_length: int | None = None,
    token_budget: int = 512,
) -> tuple[list[Answer], ListOf[Bucket]]:
    """Return answers of an engine that steps in fixed shapes, and the shapes."""
    engine = Engine(
        model,
        slots=slots,
        max_length=max_length,
        token_budget=token_budget,
        pack=False,
        costs=AssumedCosts(),
    )
    runner = engine.runner
    runner.static = StaticForward(runner.decoder, engine._cache, model.mask_token_id)
    sequences = [engine.add(prompt, each) for prompt, each in requests]
    for _ in engine.run():
        pass
    return [answer_of(sequence) for sequence in sequences], runner.static.buckets


@pytest.mark.parametrize("token_budget", [7, 512])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_eight_requests_over_three_slots_answer_as_alone(
    fitted_model: MarsModel, strategy: str, token_budget: int
) -> None:
    """Prompts whole and in pieces, slots idle and taken again, greedy and sampled."""
    prompts = [letters(length, random.Random(length)) for length in LENGTHS]
    requests = [(prompt, params(index, strategy)) for index, prompt in enumerate(prompts)]
    answers, buckets = run_static(fitted_model, requests, token_budget=token_budget)
    for (prompt, each), answer in zip(requests, answers, strict=True):
        assert answer.ids == solo(fitted_model, prompt, each).ids
    assert len(buckets) > 1
    if strategy != "ar":
        assert max(bucket.width for bucket in buckets) > 1
        assert max(run for answer in answers for run in answer.runs) > 1


def test_an_adapters_masks_among_other_rows(random_model: MarsModel) -> None:
    """All strategies in one batch, of every architecture."""
    model = with_random_adapter(random_model, block_size=6)
    requests = [
        (prompt, params(index, STRATEGIES[index % len(STRATEGIES)]))
        for index, prompt in enumerate(random_prompts(LENGTHS, seed=3))
    ]
    answers, buckets = run_static(model, requests, slots=8, token_budget=16)
    for (prompt, each), answer in zip(requests, answers, strict=True):
        assert answer.ids == solo(model, prompt, each).ids
        if each.strategy != "mars":
            assert answer.ids == solo(random_model, prompt, replace(each, strategy="ar")).ids
    assert {bucket.masks for bucket in buckets} == {False, True}


def test_a_full_request_ends_in_the_last_cell_of_its_slot(fitted_model: MarsModel) -> None:
    """Padding writes to that cell, so a step that needs it is laid out as it comes."""
    prompts = [letters(length, random.Random(length)) for length in (100, 90)]
    for strategy in ("ar", "mars", "lossless-chain"):
        requests = [
            (p, SamplingParams(strategy=strategy, max_new_tokens=40, tau=0.3, ignore_eos=True))
            for p in prompts
        ]
        answers, _ = run_static(fitted_model, requests, max_length=128)
        for (prompt, each), answer in zip(requests, answers, strict=True):
            room = 128 - len(prompt)
            assert answer.ids == solo(fitted_model, prompt, each).ids[:room]
