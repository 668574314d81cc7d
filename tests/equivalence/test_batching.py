"""A request's answer does not depend on who runs beside it (FAULTS 5 and 6)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from helpers import LETTERS, letters, random_prompts, solo, with_random_adapter
from marslm.engine.api import Answer, answer_of
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence

STEADY = ("ar", "mars", "lossless-chain")
"""Strategies whose windows, and so runs, depend on nothing but the request."""
STRATEGIES = (*STEADY, "lossless-tree", "lossless")
LENGTHS = (1, 40, 3, 17, 16, 2, 29, 8)


def make_prompts() -> list[list[int]]:
    generator = random.Random(7)
    prompts = [letters(length, generator) for length in LENGTHS]
    prompts[3] = random_prompts([LENGTHS[3]], seed=1)[0]
    return prompts


def make_params(index: int, strategy: str) -> SamplingParams:
    """Return settings that end eight requests at different times and for different reasons."""
    return SamplingParams(
        strategy=strategy,
        max_new_tokens=(5, 31, 1, 24, 18, 40, 12, 27)[index],
        temperature=(0.0, 0.0, 0.8, 0.0, 1.2, 0.6, 0.0, 0.0)[index],
        seed=index,
        stop=((), ("hi",), (), (), ("kl", "ab"), (), (), ("efg",))[index],
        tau=(0.3, 0.5, 0.9, 0.05, 0.4, 0.2, 0.6, 1.0)[index],
        block=(None, 3, 4, 6, None, 2, 5, 4)[index],
    )


def run_batch(
    model: MarsModel,
    requests: list[tuple[list[int], SamplingParams]],
    *,
    slots: int = 3,
    token_budget: int = 512,
    meanwhile: Callable[[Engine, list[Sequence], int], None] = lambda engine, all_, step: None,
) -> list[Answer]:
    engine = Engine(model, slots=slots, token_budget=token_budget, pack=False, costs=AssumedCosts())
    sequences = [engine.add(prompt, params) for prompt, params in requests]
    step = 0
    while engine.busy:
        engine.step()
        meanwhile(engine, sequences, step)
        step += 1
    return [answer_of(sequence) for sequence in sequences]


def facts(answer: Answer, strategy: str | None) -> tuple[object, ...]:
    runs = answer.runs if strategy in STEADY else None
    return answer.ids, answer.text, answer.finish_reason, runs


@pytest.mark.parametrize("token_budget", [3, 7, 512])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_eight_requests_over_three_slots_answer_as_alone(
    fitted_model: MarsModel, strategy: str, token_budget: int
) -> None:
    requests = [(p, make_params(i, strategy)) for i, p in enumerate(make_prompts())]
    together = run_batch(fitted_model, requests, token_budget=token_budget)
    for (prompt, params), answer in zip(requests, together, strict=True):
        alone = solo(fitted_model, prompt, params)
        assert facts(answer, params.strategy) == facts(alone, params.strategy)
    assert {answer.finish_reason for answer in together} == {"stop", "length"}
    if strategy != "ar":
        assert max(run for answer in together for run in answer.runs) > 1


@pytest.mark.parametrize("token_budget", [5, 512])
def test_mixed_strategies_in_one_batch(fitted_model: MarsModel, token_budget: int) -> None:
    requests = [
        (prompt, make_params(index, STRATEGIES[index % len(STRATEGIES)]))
        for index, prompt in enumerate(make_prompts())
    ]
    together = run_batch(fitted_model, requests, slots=8, token_budget=token_budget)
    for (prompt, params), answer in zip(requests, together, strict=True):
        alone = solo(fitted_model, prompt, params)
        assert facts(answer, params.strategy) == facts(alone, params.strategy)


def test_random_models_of_every_architecture(random_model: MarsModel) -> None:
    """With an adapter too, whose updates must reach the right rows of a ragged batch."""
    for model in (random_model, with_random_adapter(random_model, block_size=6)):
        requests = [
            (prompt, make_params(index, STRATEGIES[index % len(STRATEGIES)]))
            for index, prompt in enumerate(random_prompts(LENGTHS, seed=3))
        ]
        together = run_batch(model, requests, token_budget=9)
        for (prompt, params), answer in zip(requests, together, strict=True):
            alone = solo(model, prompt, params)
            assert facts(answer, params.strategy) == facts(alone, params.strategy)
            if params.strategy != "mars":
                plain = solo(random_model, prompt, replace(params, strategy="ar"))
                assert answer.ids == plain.ids


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_requests_that_come_and_go_disturb_nobody(fitted_model: MarsModel, strategy: str) -> None:
    """Two are aborted, one while it runs and one while it waits, and two join later."""
    prompts = make_prompts()
    requests = [
        (prompt, replace(make_params(i, strategy), max_new_tokens=30, stop=()))
        for i, prompt in enumerate(prompts)
    ]
    late: list[Sequence] = []

    def meanwhile(engine: Engine, sequences: list[Sequence], step: int) -> None:
        if step == 4:
            engine.abort(sequences[1])
            engine.abort(sequences[7])
            late.extend(engine.add(prompt, params) for prompt, params in requests[4:6])

    together = run_batch(fitted_model, requests, token_budget=16, meanwhile=meanwhile)

    alone = [solo(fitted_model, prompt, params) for prompt, params in requests]
    for index, (answer, expected) in enumerate(zip(together, alone, strict=True)):
        if index in (1, 7):
            assert answer.finish_reason == "abort"
            assert answer.ids == expected.ids[: len(answer.ids)]
        else:
            assert facts(answer, strategy) == facts(expected, strategy)
    assert len(together[7].ids) == 0 < len(together[1].ids) < 30
    assert [facts(answer_of(sequence), strategy) for sequence in late] == [
        facts(expected, strategy) for expected in alone[4:6]
    ]


def test_a_used_slot_answers_as_a_new_one(fitted_model: MarsModel) -> None:
    """What the last request left in the cache is never read: a long one before a short one."""
    engine = Engine(fitted_model, slots=1, pack=False)
    params = SamplingParams(strategy="lossless-chain", max_new_tokens=20)
    for prompt in (letters(60, random.Random(1)), LETTERS[:1], LETTERS[3:8]):
        sequence = engine.add(prompt, params)
        for _ in engine.run():
            pass
        alone = solo(fitted_model, prompt, params)
        assert facts(answer_of(sequence), "lossless-chain") == facts(alone, "lossless-chain")
