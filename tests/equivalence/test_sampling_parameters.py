"""Exact strategies write what `ar` writes under any sampling parameters (FAULTS 1, 11 and 12)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import LETTERS, letters, recompute, solo
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.strategies.base import DraftSide
from marslm.strategies.registry import exact_strategies

parameters = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.5, 1.0, 1.6]),
        "top_k": st.integers(1, 6),
        "top_p": st.floats(0.3, 1),
        "min_p": st.floats(0, 0.3),
        "repetition_penalty": st.floats(0.8, 1.5),
        "frequency_penalty": st.floats(-0.3, 1),
        "presence_penalty": st.floats(-0.5, 1),
        "logit_bias": st.dictionaries(st.sampled_from(LETTERS), st.floats(-4, 4), max_size=3),
        "min_tokens": st.integers(0, 12),
        "stop_token_ids": st.lists(st.sampled_from(LETTERS), max_size=2).map(tuple),
        "stop": st.lists(st.text("abcdefghijkl", min_size=1, max_size=3), max_size=2).map(tuple),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 3),
    },
)


@pytest.mark.parametrize("strategy", [s for s in exact_strategies() if s != "ar"])
@settings(max_examples=12)
@given(chosen=parameters, seed=st.integers(0, 2**40), block=st.integers(2, 6))
def test_any_parameters_give_the_one_token_answer(
    fitted_model: MarsModel,
    fitted_medusa: MarsModel,
    fitted_draft: MarsModel,
    strategy: str,
    chosen: dict[str, object],
    seed: int,
    block: int,
) -> None:
    prompt = letters(2 + seed % 9, random.Random(seed))
    plain, other = (
        solo(
            fitted_medusa if strategy == "medusa" else fitted_model,
            prompt,
            SamplingParams(
                strategy=name, seed=seed, block=block, **{"max_new_tokens": 24, **chosen}
            ),
            draft=DraftSide(fitted_draft),
        )
        for name in ("ar", strategy)
    )
    assert (other.ids, other.text, other.finish_reason) == (
        plain.ids,
        plain.text,
        plain.finish_reason,
    )
    assert sum(other.runs) == len(other.ids)
    assert len(other.logprobs) == (len(other.ids) if "logprobs" in chosen else 0)
    for one, two in zip(other.logprobs, plain.logprobs, strict=True):
        assert one.logprob == pytest.approx(two.logprob)
        assert [token for token, _ in one.top] == [token for token, _ in two.top]


@settings(max_examples=10)
@given(chosen=parameters, seed=st.integers(0, 2**40))
def test_one_token_decoding_obeys_the_parameters_as_the_plainest_decoder_does(
    fitted_model: MarsModel, chosen: dict[str, object], seed: int
) -> None:
    prompt = letters(2 + seed % 9, random.Random(seed))
    chosen = {key: value for key, value in chosen.items() if key != "stop"}
    params = SamplingParams(strategy="ar", seed=seed, **{"max_new_tokens": 16, **chosen})
    assert solo(fitted_model, prompt, params).ids == recompute(fitted_model, prompt, params)
