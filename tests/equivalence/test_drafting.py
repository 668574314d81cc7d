"""The strategies that guess: exact where they say so, and worth their guesses where they can be."""

from __future__ import annotations

import random
from itertools import product

import pytest

from helpers import LETTERS, build_model, letters, random_prompts, solo
from marslm.engine.api import answer_of
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.strategies.base import DraftSide


def forwards(model: MarsModel, draft: MarsModel, **params: object) -> tuple[list[int], int]:
    """Return the answer to one prompt and its number of forwards."""
    params = {"max_new_tokens": 40, "ignore_eos": True, **params}
    prompt = letters(16, random.Random(3))
    answer = solo(model, prompt, SamplingParams(**params), draft=DraftSide(draft))
    return answer.ids, len(answer.runs)


@pytest.mark.parametrize("strategy", ["prompt_lookup", "draft_model"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_guesses_that_are_right_save_forwards(
    fitted_model: MarsModel, fitted_draft: MarsModel, strategy: str, temperature: float
) -> None:
    params = {"temperature": temperature, "seed": 5, "block": 5}
    plain, steps = forwards(fitted_model, fitted_draft, strategy="ar", **params)
    ids, fewer = forwards(fitted_model, fitted_draft, strategy=strategy, **params)
    assert ids == plain
    assert steps == 40
    assert fewer < 40


@pytest.mark.parametrize(("block", "least"), [(5, 8), ("full", 2)])
def test_jacobi_keeps_what_no_longer_changes(
    fitted_model: MarsModel, block: int | str, least: int
) -> None:
    """Here where the answer settles on one letter, which is what it guesses first."""
    for bias, most in ((0.0, 40), (30.0, least + 2)):
        params = {"logit_bias": {LETTERS[3]: bias}}
        plain, _ = forwards(fitted_model, fitted_model, strategy="ar", **params)
        ids, steps = forwards(fitted_model, fitted_model, strategy="jacobi", block=block, **params)
        assert ids == plain
        assert least <= steps <= most


def test_only_jacobi_guesses_a_whole_answer(fitted_model: MarsModel) -> None:
    for strategy in ("ar", "mars", "lossless", "prompt_lookup"):
        with pytest.raises(InputError, match="cannot take block full"):
            forwards(fitted_model, fitted_model, strategy=strategy, block="full")


def test_the_papers_table_of_draft_and_target(
    fitted_model: MarsModel, fitted_draft: MarsModel
) -> None:
    """A small model's masks change its number of forwards alone; the judge's change the answer."""
    prompts = [letters(12, random.Random(seed)) for seed in range(6)]
    params = {"max_new_tokens": 40, "ignore_eos": True, "block": 3, "tau": 0.4}
    plain = [solo(fitted_model, p, SamplingParams(strategy="ar", **params)).ids for p in prompts]
    forwards = {}
    for target, tau in product(("draft_model", "draft_model-mars"), (1.0, 0.5)):
        settings = SamplingParams(strategy=target, **params)
        answers = [solo(fitted_model, p, settings, DraftSide(fitted_draft, tau)) for p in prompts]
        forwards[target, tau] = sum(len(answer.runs) for answer in answers)
        if target == "draft_model":
            assert [answer.ids for answer in answers] == plain
    assert max(forwards.values()) < 40 * len(prompts)
    for tau in (1.0, 0.5):
        # More is kept of every step, but not all that is kept is right.
        assert forwards["draft_model-mars", tau] < forwards["draft_model", tau]


@pytest.mark.parametrize("tau", [1.0, 0.6])
def test_drafts_of_many_requests_are_those_of_each_alone(
    fitted_model: MarsModel, fitted_draft: MarsModel, tau: float
) -> None:
    """Ragged prompts, more requests than slots, one aborted, and other strategies among them."""
    side = DraftSide(fitted_draft, tau)
    strategies = ["draft_model", "prompt_lookup", "draft_model", "ar", "draft_model", "jacobi"]
    prompts = [letters(length, random.Random(length)) for length in (3, 30, 8, 17, 5, 12)]
    engine = Engine(fitted_model, slots=3, max_length=100, pack=False, draft=side)
    requests = []
    for strategy, prompt in zip(strategies, prompts, strict=True):
        params = SamplingParams(strategy=strategy, max_new_tokens=20, temperature=0.6, seed=2)
        requests.append(engine.add(prompt, params))
    doomed = engine.add(prompts[0], SamplingParams(strategy="draft_model", max_new_tokens=50))
    while engine.busy:
        engine.step()
        if len(doomed.runs) == 3:
            engine.abort(doomed)
    for request in requests:
        alone = solo(fitted_model, request.tokens[: request.prompt_length], request.params, side)
        assert answer_of(request) == alone


def test_a_request_may_outgrow_the_small_models_context(fitted_model: MarsModel) -> None:
    short = build_model("llama", seed=1, context=24)
    plain, _ = forwards(fitted_model, short, strategy="ar")
    ids, _ = forwards(fitted_model, short, strategy="draft_model")
    assert ids == plain


def test_a_draft_model_that_cannot_serve_is_refused(
    fitted_model: MarsModel, fitted_draft: MarsModel
) -> None:
    def add(draft: DraftSide | None) -> None:
        engine = Engine(fitted_model, slots=1, max_length=32, draft=draft)
        engine.add([1, 2], SamplingParams(strategy="draft_model"))

    with pytest.raises(InputError, match="name one with --draft-model"):
        add(None)
    with pytest.raises(InputError, match="was not trained for several tokens"):
        add(DraftSide(fitted_model, 0.5))
    add(DraftSide(fitted_draft, 0.5))


def test_prompt_lookup_finds_what_it_has_seen() -> None:
    """A random model repeats nothing, so the guesses are the prompt's, and are refused."""
    model = build_model("qwen2", seed=2)
    for prompt in random_prompts([2, 9], seed=1):
        text = prompt * 3
        params = {"max_new_tokens": 12, "ignore_eos": True, "block": 4}
        plain, looked_up = (
            solo(model, text, SamplingParams(strategy=name, **params))
            for name in ("ar", "prompt_lookup")
        )
        assert looked_up.ids == plain.ids
        assert looked_up.decode_rows > plain.decode_rows
