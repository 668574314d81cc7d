"""Answers that follow a grammar: all do, and exact strategies write what `ar` writes."""

from __future__ import annotations

import json
import math
import re

import pytest

from helpers import TOKENIZER, random_prompts, solo
from marslm.engine.api import Answer
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.constraint import Grammars
from marslm.runtime.params import SamplingParams
from marslm.strategies.base import DraftSide
from marslm.strategies.registry import strategy_names

pytest.importorskip("llguidance")

REGEX = r"([a-f]{2,5} = [0-9]+; ){2,3}(yes|no|maybe)"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "日本"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
STRATEGIES = [name for name in strategy_names() if name != "block_diffusion"]


def answer(model: MarsModel, draft: MarsModel, prompt: list[int], **params: object) -> Answer:
    settings = SamplingParams(max_new_tokens=120, block=4, tau=0.6, **params)
    return solo(model, prompt, settings, draft=DraftSide(draft))


def follows_schema(text: str) -> bool:
    found = json.loads(text)
    assert list(found) == ["name", "age", "likes"]
    assert len(found["name"]) <= 6
    assert 0 <= found["age"] <= 120
    return set(found["likes"]) <= {"tea", "rain", "日本"} and len(found["likes"]) <= 3


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_strategy_follows_a_grammar(
    fitted_model: MarsModel,
    fitted_medusa: MarsModel,
    fitted_draft: MarsModel,
    strategy: str,
    temperature: float,
) -> None:
    model = fitted_medusa if strategy == "medusa" else fitted_model
    exact = strategy not in ("mars", "draft_model-mars")
    for number, prompt in enumerate(random_prompts([3, 11], seed=4)):
        for grammar in ({"regex": REGEX}, {"json_schema": SCHEMA}):
            params = {"temperature": temperature, "seed": number, **grammar}
            found = answer(model, fitted_draft, prompt, strategy=strategy, **params)
            if found.finish_reason == "stop":
                if "regex" in grammar:
                    assert re.fullmatch(REGEX, found.text)
                else:
                    assert follows_schema(found.text)
            if exact and strategy != "ar":
                plain = answer(model, fitted_draft, prompt, strategy="ar", **params)
                assert (found.ids, found.text) == (plain.ids, plain.text)


def test_answers_end_when_the_grammar_does(
    fitted_model: MarsModel, fitted_draft: MarsModel
) -> None:
    found = answer(fitted_model, fitted_draft, [1, 2], strategy="lossless", regex="[abc]{7}")
    assert re.fullmatch("[abc]{7}", found.text)
    assert found.finish_reason == "stop"
    assert found.ids[-1] in fitted_model.end_token_ids


@pytest.mark.parametrize("strategy", ["ar", "lossless-chain", "mars"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_ban_yields_where_the_grammar_admits_nothing_else(
    fitted_model: MarsModel, fitted_draft: MarsModel, strategy: str, temperature: float
) -> None:
    ban = dict.fromkeys(TOKENIZER.encode("acf"), -math.inf)
    settings = {"strategy": strategy, "temperature": temperature, "regex": "[ab]c[de][fg]"}
    found = answer(fitted_model, fitted_draft, [1, 2], logit_bias=ban, **settings)
    assert re.fullmatch("bc[de]g", found.text)
    assert found.finish_reason == "stop"


def test_a_constraint_goes_back_and_forth_between_answers(random_model: MarsModel) -> None:
    """What may come next depends on the answer asked about, not on those asked about before."""
    grammars = Grammars(random_model)

    def allowed(constraint: object, text: str) -> set[str]:
        mask = constraint.allowed(TOKENIZER.encode(text))
        assert mask.shape == (random_model.network.config.vocab_size,)
        return {TOKENIZER.decode([token]) for token in mask.nonzero().flatten().tolist()}

    params = SamplingParams(regex="ab(cd|ce)*f?")
    constraint = grammars.constraint_for(params)
    texts = ["", "a", "abcd", "abce", "abc", "abcecdf", "ab", "abcd", ""]
    for text in texts:
        fresh = grammars.constraint_for(params)
        assert allowed(constraint, text) == allowed(fresh, text)
    assert {"c", "f"} <= allowed(constraint, "abcd")
    assert allowed(constraint, "abc") == {"d", "e"}
    assert constraint.allowed([]).nonzero().flatten().tolist() == TOKENIZER.encode("a")


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ({"regex": "(ab"}, "the regex cannot be used"),
        ({"json_schema": "{nonsense"}, "the json_schema cannot be used"),
        ({"json_schema": {"type": "strnig"}}, "the json_schema cannot be used"),
        ({"regex": "a", "json_schema": {}}, "an answer can follow one"),
        ({"regex": "a", "ignore_eos": True}, "leave out ignore_eos"),
        ({"json_schema": {}, "min_tokens": 3}, "leave out min_tokens"),
    ],
)
def test_a_grammar_that_cannot_be_meant(
    fitted_model: MarsModel, grammar: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Engine(fitted_model, slots=1, max_length=32).add([1], SamplingParams(**grammar))
    assert "\n" not in str(caught.value)
