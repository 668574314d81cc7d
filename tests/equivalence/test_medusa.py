"""Medusa heads: the one-token answer in fewer forwards, together as alone, and refused clearly."""

from __future__ import annotations

import random

import pytest

from helpers import letters, solo
from marslm.engine.api import answer_of
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

PROMPTS = [letters(length, random.Random(length)) for length in (4, 12, 25, 7, 33, 5, 18, 9)]


def params_for(index: int, strategy: str) -> SamplingParams:
    return SamplingParams(
        strategy=strategy,
        max_new_tokens=(5, 31, 1, 24, 18, 40, 12, 27)[index],
        temperature=(0.0, 0.0, 0.8, 0.0, 1.2, 0.6, 0.0, 0.0)[index],
        seed=index,
        block=(None, 3, 4, None, 2, None, 4, 4)[index],
    )


def test_eight_requests_over_three_slots_answer_as_ar_alone(fitted_medusa: MarsModel) -> None:
    engine = Engine(fitted_medusa, slots=3, token_budget=7, pack=False)
    sequences = [engine.add(p, params_for(i, "medusa")) for i, p in enumerate(PROMPTS)]
    for _ in engine.run():
        pass
    for index, (prompt, sequence) in enumerate(zip(PROMPTS, sequences, strict=True)):
        together = answer_of(sequence)
        plain = solo(fitted_medusa, prompt, params_for(index, "ar"))
        alone = solo(fitted_medusa, prompt, params_for(index, "medusa"))
        assert together.ids == plain.ids == alone.ids
        assert together.runs == alone.runs
    assert max(run for sequence in sequences for run in sequence.runs) == 4


def test_heads_save_forwards(fitted_medusa: MarsModel) -> None:
    params = SamplingParams(strategy="medusa", max_new_tokens=40, ignore_eos=True)
    assert sum(len(solo(fitted_medusa, prompt, params).runs) for prompt in PROMPTS) < 0.8 * 320


def test_turning_to_another_strategy_and_back_changes_no_token(fitted_medusa: MarsModel) -> None:
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    engine = Engine(fitted_medusa, slots=1, pack=False)
    engine.speed.strategy = "medusa"
    sequence = engine.add(PROMPTS[0], params)
    while engine.busy:
        engine.speed.strategy = random.Random(len(sequence.runs)).choice(["ar", "medusa"])
        engine.step()
    plain = SamplingParams(strategy="ar", max_new_tokens=40, ignore_eos=True)
    assert sequence.transcript.ids == solo(fitted_medusa, PROMPTS[0], plain).ids


def test_a_model_without_heads_is_refused(fitted_model: MarsModel) -> None:
    with pytest.raises(InputError, match="has no Medusa heads: name a folder"):
        solo(fitted_model, PROMPTS[0], SamplingParams(strategy="medusa"))


@pytest.mark.parametrize("strategy", ["mars", "lossless"])
def test_heads_are_no_training_for_masks(fitted_medusa: MarsModel, strategy: str) -> None:
    with pytest.raises(InputError, match="use strategy medusa or ar"):
        solo(fitted_medusa, PROMPTS[0], SamplingParams(strategy=strategy))
