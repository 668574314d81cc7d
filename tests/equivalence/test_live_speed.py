"""The speed knob is read at every step, and turning it never makes an exact answer wrong."""

from __future__ import annotations

import random

import pytest

from helpers import letters, solo
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams

PROMPTS = [letters(length, random.Random(length)) for length in (4, 12, 25, 7, 33)]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_turning_between_exact_strategies_changes_no_token(
    fitted_model: MarsModel, temperature: float
) -> None:
    params = SamplingParams(max_new_tokens=40, temperature=temperature, seed=5)
    engine = Engine(fitted_model, slots=2, token_budget=20, pack=False, costs=AssumedCosts())
    sequences = [engine.add(prompt, params) for prompt in PROMPTS]
    generator = random.Random(0)
    while engine.busy:
        engine.speed.strategy = generator.choice(["ar", "lossless", "lossless", "mars"])
        # A mars step is exact at tau = 1 alone.
        exact = engine.speed.strategy == "mars"
        engine.speed.tau = 1.0 if exact else generator.uniform(0.1, 1)
        engine.step()
    for prompt, sequence in zip(PROMPTS, sequences, strict=True):
        plain = solo(
            fitted_model,
            prompt,
            SamplingParams(max_new_tokens=40, temperature=temperature, seed=5, strategy="ar"),
        )
        assert sequence.transcript.ids == plain.ids
    assert any(run > 1 for sequence in sequences for run in sequence.runs)


def test_mars_obeys_tau_at_the_next_step(fitted_model: MarsModel) -> None:
    engine = Engine(fitted_model, slots=5, pack=False)
    params = SamplingParams(strategy="mars", max_new_tokens=60, ignore_eos=True, block=4)
    sequences = [engine.add(prompt, params) for prompt in PROMPTS]
    for tau, expected in [(1e-9, 4), (1.0, 1), (1e-9, 4), (1e-9, 4), (1.0, 1), (1.0, 1)]:
        engine.speed.tau = tau
        assert [len(event.tokens) for event in engine.step()] == [expected] * len(sequences)


def test_the_strategy_changes_at_the_next_step(fitted_model: MarsModel) -> None:
    engine = Engine(fitted_model, slots=5, pack=False)
    for prompt in PROMPTS:
        engine.add(prompt, SamplingParams(max_new_tokens=60, ignore_eos=True))
    engine.speed.tau = 1e-9
    for strategy, expected in [("mars", 4), ("ar", 1), ("mars", 4), ("ar", 1), ("ar", 1)]:
        engine.speed.strategy = strategy
        assert [len(event.tokens) for event in engine.step()] == [expected] * len(PROMPTS)


def test_a_requests_own_settings_outrank_the_knob(fitted_model: MarsModel) -> None:
    engine = Engine(fitted_model, slots=2, pack=False)
    engine.speed.strategy, engine.speed.tau = "mars", 1e-9
    fixed = engine.add(PROMPTS[0], SamplingParams(max_new_tokens=20, tau=1.0, ignore_eos=True))
    plain = engine.add(PROMPTS[1], SamplingParams(max_new_tokens=20, strategy="ar"))
    for _ in engine.run():
        pass
    assert fixed.runs == [1] * 20
    assert set(plain.runs) == {1}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_at_tau_one_mars_is_one_token_decoding(fitted_model: MarsModel, prompt: list[int]) -> None:
    plain = solo(fitted_model, prompt, SamplingParams(strategy="ar", max_new_tokens=30))
    mars = solo(fitted_model, prompt, SamplingParams(strategy="mars", max_new_tokens=30, tau=1.0))
    assert (mars.ids, mars.runs) == (plain.ids, plain.runs)
    assert mars.decode_rows == plain.decode_rows


def test_a_lower_tau_takes_fewer_forwards(fitted_model: MarsModel) -> None:
    def forwards(tau: float) -> int:
        params = SamplingParams(strategy="mars", max_new_tokens=48, tau=tau, ignore_eos=True)
        return sum(len(solo(fitted_model, prompt, params).runs) for prompt in PROMPTS)

    counts = [forwards(tau) for tau in (1.0, 0.6, 0.4, 1e-9)]
    assert counts[0] == 48 * len(PROMPTS)
    assert counts[0] > counts[1] > counts[2] > counts[3] == 12 * len(PROMPTS)
