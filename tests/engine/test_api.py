"""Offline generation: many prompts in, answers out, in the same order."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from helpers import build_model, letters, solo
from marslm.data.dialogues import Message
from marslm.engine.api import Answer, encode, generate, room_for
from marslm.engine.engine import StepEvent
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

PROMPTS = [letters(length, random.Random(length)) for length in (30, 2, 11, 5, 19)]


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_answers_come_in_the_order_of_the_prompts(fitted_model: MarsModel, slots: int) -> None:
    """Whatever order they finish in."""
    params = SamplingParams(max_new_tokens=20, strategy="lossless", stop=("hi",))
    answers = generate(fitted_model, PROMPTS, params, slots=slots)
    assert [answer.prompt_ids for answer in answers] == PROMPTS
    alone = [solo(fitted_model, prompt, params) for prompt in PROMPTS]
    assert [(a.ids, a.text, a.finish_reason) for a in answers] == [
        (a.ids, a.text, a.finish_reason) for a in alone
    ]
    assert len({len(answer.ids) for answer in answers}) > 1


def test_overrides_change_the_given_params(fitted_model: MarsModel) -> None:
    params = SamplingParams(max_new_tokens=9, ignore_eos=True, strategy="ar")
    [answer] = generate(fitted_model, [PROMPTS[0]], params, strategy="mars", tau=1e-9, block=3)
    assert answer.runs == [3, 3, 3]
    [plain] = generate(fitted_model, [PROMPTS[0]], max_new_tokens=4, strategy="ar")
    assert plain.runs == [1] * 4
    assert params.strategy == "ar"


def test_a_text_is_a_users_turn(fitted_model: MarsModel) -> None:
    message = [Message("user", "What is up?")]
    ids = encode(fitted_model, message)
    assert encode(fitted_model, "What is up?") == encode(fitted_model, ids) == ids
    text = fitted_model.tokenizer.decode(ids)
    assert text == "<|im_start|>user\nWhat is up?<|im_end|>\n<|im_start|>assistant\n"
    answers = generate(fitted_model, ["What is up?", message, ids], strategy="ar", max_new_tokens=8)
    assert answers[0] == answers[1] == answers[2]


def test_messages_keep_their_roles(fitted_model: MarsModel) -> None:
    dialogue = [Message("system", "S"), Message("user", "U"), Message("assistant", "A")]
    text = fitted_model.tokenizer.decode(encode(fitted_model, [*dialogue, Message("user", "V")]))
    assert [text.index(part) for part in ("system\nS", "user\nU", "assistant\nA", "user\nV")] == (
        sorted(text.index(part) for part in ("system\nS", "user\nU", "assistant\nA", "user\nV"))
    )


def test_every_step_is_heard(fitted_model: MarsModel) -> None:
    tokens: dict[int, list[int]] = defaultdict(list)
    texts: dict[int, str] = defaultdict(str)
    runs: dict[int, list[int]] = defaultdict(list)

    def hear(event: StepEvent) -> None:
        tokens[event.sequence.number] += event.tokens
        texts[event.sequence.number] += event.text
        runs[event.sequence.number].append(len(event.tokens))

    answers = generate(
        fitted_model, PROMPTS, max_new_tokens=20, stop=("kl", "hij"), slots=2, on_step=hear
    )
    for number, answer in enumerate(answers):
        assert tokens[number] == answer.ids
        assert texts[number] == answer.text
        assert runs[number] == answer.runs


def test_tokens_per_forward_counts_the_prompts_forward() -> None:
    answer = Answer([1], [5, 6, 7, 8, 9, 3], "", [3, 1, 2], 9, "length")
    assert answer.tokens_per_forward == 2.0


def test_no_prompts_no_answers(fitted_model: MarsModel) -> None:
    assert generate(fitted_model, []) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], []], "the prompt is empty"),
        ([[1] * 64], "has 64 tokens"),
        ([[1, 999]], "token ids outside"),
    ],
)
def test_a_bad_prompt_is_refused(prompts: list[list[int]], message: str) -> None:
    model = build_model("llama", hidden_size=16, layers=1, context=64)
    with pytest.raises(InputError, match=message):
        generate(model, prompts)


def test_bad_params_are_refused(fitted_model: MarsModel) -> None:
    with pytest.raises(InputError, match="tau is 2"):
        generate(fitted_model, [[1]], tau=2)
    with pytest.raises(InputError, match="unknown strategy 'magic'"):
        generate(fitted_model, [[1]], strategy="magic")


def test_one_text_in_place_of_a_list_is_refused(fitted_model: MarsModel) -> None:
    """Not answered letter by letter."""
    with pytest.raises(InputError, match="list"):
        generate(fitted_model, "Hi", max_new_tokens=1)


def test_a_cache_that_just_fits(fitted_model: MarsModel) -> None:
    """The cache is sized for prompt, answer and windows: no answer is cut short by it."""
    for strategy in ("ar", "mars", "lossless-chain"):
        params = SamplingParams(
            strategy=strategy, tau=0.2, block=7, max_new_tokens=15, ignore_eos=True
        )
        assert room_for(fitted_model, 30, params) >= 45
        answers = generate(fitted_model, PROMPTS, params)
        assert [len(answer.ids) for answer in answers] == [15] * 5
        assert [a.runs for a in answers] == [solo(fitted_model, p, params).runs for p in PROMPTS]
