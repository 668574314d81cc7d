"""The model's own answers: cached as they finish, resumed, in order, and the same in any batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import build_model, solo
from marslm.data.dialogues import Dialogue, Message
from marslm.data.encode import Example, encode_prompt
from marslm.distill.answers import AnswerProgress, answer_all
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.models.tiny import build_tokenizer
from marslm.runtime.params import SamplingParams

ASKED = ("Hi", "What is it?", "Tell me a long story about a cat.", "a", "12 + 30?", "Hm")
TOKENS = 12


@pytest.fixture(scope="module")
def model() -> MarsModel:
    """A float64 model whose answers end at one token in sixteen, so that they differ in length."""
    return build_model("llama", seed=1, end_token_ids=range(7, 288, 16))


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    """What people asked; the answers that they got are not to be used."""
    return [
        Dialogue((Message("user", text), Message("assistant", "gold")), f"a.jsonl:{i}")
        for i, text in enumerate(ASKED, 1)
    ]


@pytest.fixture(scope="module")
def expected(model: MarsModel, dialogues: list[Dialogue]) -> list[Example]:
    """Each prompt answered alone."""
    params = SamplingParams(max_new_tokens=TOKENS, strategy="ar")
    found = []
    for dialogue in dialogues:
        prompt = encode_prompt(model.tokenizer, dialogue.prompt)
        answer = solo(model, prompt, params).ids
        flags = [False] * len(prompt) + [True] * len(answer)
        found.append(Example((*prompt, *answer), tuple(flags), dialogue.source))
    lengths = {sum(example.supervised) for example in found}
    assert len(lengths) > 2  # they join and leave the batch at different steps
    assert TOKENS in lengths
    return found


def answer(
    model: MarsModel, dialogues: list[Dialogue], cache: Path, **options: Any
) -> list[Example]:
    options = {"max_length": 200, "max_new_tokens": TOKENS, **options}
    return answer_all(model, dialogues, cache, **options)


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_answers_are_those_of_single_runs_in_the_prompts_order(
    model: MarsModel,
    dialogues: list[Dialogue],
    expected: list[Example],
    tmp_path: Path,
    slots: int,
) -> None:
    assert answer(model, dialogues, tmp_path / "new" / "cache.jsonl", slots=slots) == expected


class Interrupted(Exception):
    pass


def stop_after(answers: int) -> Any:
    def listen(progress: AnswerProgress) -> None:
        if progress.done >= answers:
            raise Interrupted

    return listen


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an answer was decoded again")

    monkeypatch.setattr("marslm.distill.writers.Engine", refuse)


def test_cached_answers_are_not_decoded_again(
    model: MarsModel,
    dialogues: list[Dialogue],
    expected: list[Example],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = tmp_path / "cache.jsonl"
    answer(model, dialogues, cache)
    before = cache.read_bytes()
    forbid_decoding(monkeypatch)
    assert answer(model, dialogues, cache) == expected
    assert answer(model, dialogues[::-2], cache) == expected[::-2]
    assert cache.read_bytes() == before


def test_an_interrupted_run_goes_on_where_it_stopped(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path
) -> None:
    cache = tmp_path / "cache.jsonl"
    with pytest.raises(Interrupted):
        answer(model, dialogues, cache, slots=2, listener=stop_after(3))
    kept = cache.read_text()
    assert kept.count("\n") == 3
    heard: list[AnswerProgress] = []
    assert answer(model, dialogues, cache, slots=2, listener=heard.append) == expected
    assert cache.read_text().startswith(kept)
    assert cache.read_text().count("\n") == 6
    assert {progress.total for progress in heard} == {3}


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_was_cut_off_is_answered_again(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path, cut: int
) -> None:
    cache = tmp_path / "cache.jsonl"
    answer(model, dialogues, cache)
    cache.write_text(cache.read_text()[:-cut])
    heard: list[AnswerProgress] = []
    assert answer(model, dialogues, cache, listener=heard.append) == expected
    assert {progress.total for progress in heard} == {1}
    lines = cache.read_text().splitlines()
    assert len({json.loads(line)["key"] for line in lines}) == len(lines) == 6


def test_a_damaged_line_in_the_middle_is_named(
    model: MarsModel, dialogues: list[Dialogue], tmp_path: Path
) -> None:
    cache = tmp_path / "cache.jsonl"
    answer(model, dialogues, cache)
    lines = cache.read_text().splitlines()
    cache.write_text("\n".join([lines[0], lines[1][:9], *lines[2:]]) + "\n")
    with pytest.raises(InputError, match=r"cache\.jsonl:2"):
        answer(model, dialogues, cache)


def test_answers_of_another_length_limit_are_not_reused(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path
) -> None:
    cache = tmp_path / "cache.jsonl"
    answer(model, dialogues, cache, max_new_tokens=2)
    assert answer(model, dialogues, cache) == expected


def test_answers_of_another_model_are_not_reused(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path
) -> None:
    cache = tmp_path / "cache.jsonl"
    answer(build_model("llama", seed=2), dialogues, cache)
    assert answer(model, dialogues, cache) == expected


def test_the_same_prompt_twice_is_two_examples(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path
) -> None:
    twice = [dialogues[0], Dialogue(dialogues[0].messages, "b.jsonl:1"), dialogues[1]]
    found = answer(model, twice, tmp_path / "cache.jsonl")
    assert [e.ids for e in found] == [expected[i].ids for i in (0, 0, 1)]
    assert [e.source for e in found] == ["a.jsonl:1", "b.jsonl:1", "a.jsonl:2"]


def test_prompts_without_room_are_left_out(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path
) -> None:
    prompts = [len(example.ids) - sum(example.supervised) for example in expected]
    limit = max(prompts) + TOKENS - 1
    found = answer(model, dialogues, tmp_path / "cache.jsonl", max_length=limit)
    assert found == [
        e for e, length in zip(expected, prompts, strict=True) if length < max(prompts)
    ]


def test_no_prompt_has_room(model: MarsModel, dialogues: list[Dialogue], tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="no prompt leaves room for 12 new tokens within 30: raise"
    ):
        answer(model, dialogues, tmp_path / "cache.jsonl", max_length=30)
    assert list(tmp_path.iterdir()) == []


def test_progress_adds_up(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path
) -> None:
    heard: list[AnswerProgress] = []
    answer(model, dialogues, tmp_path / "cache.jsonl", slots=2, listener=heard.append)
    done = [progress.done for progress in heard]
    assert done == sorted(done)
    assert (done[-1], heard[-1].total, heard[-1].seconds_left) == (6, 6, 0)
    assert heard[-1].tokens == sum(sum(example.supervised) for example in expected)
    assert AnswerProgress(done=2, total=6, tokens=9, seconds=10.0).seconds_left == 20
    assert AnswerProgress(done=0, total=6, tokens=0, seconds=1.0).seconds_left is None


def test_the_adapter_of_a_model_does_not_change_its_answers(
    model: MarsModel, dialogues: list[Dialogue], expected: list[Example], tmp_path: Path
) -> None:
    from helpers import with_random_adapter  # noqa: PLC0415

    adapted = with_random_adapter(model)
    assert answer(adapted, dialogues, tmp_path / "cache.jsonl") == expected
    assert adapted.network.dtype == torch.float64


def test_a_prompt_names_the_tools_that_its_row_offers(model: MarsModel, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ tools | tojson if tools }}" + str(tokenizer.chat_template)
    model = replace(model, tokenizer=tokenizer)
    tools = '[{"type": "function", "function": {"name": "look", "parameters": {}}}]'
    asked = (Message("user", "Look!"), Message("assistant", "gold"))
    (found,) = answer(model, [Dialogue(asked, "a.jsonl:1", tools=tools)], tmp_path / "a.jsonl")
    prompt = encode_prompt(model.tokenizer, asked[:1], tools=tools)
    assert prompt != encode_prompt(model.tokenizer, asked[:1])
    assert list(found.ids[: len(prompt)]) == prompt
