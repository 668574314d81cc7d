"""Prompts that the model writes itself: filtered, never twice, resumed by seed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from marslm.data.dialogues import Message
from marslm.data.encode import encode_prompt, user_header
from marslm.distill.filters import Known
from marslm.distill.self_prompts import SAMPLING, PromptSource
from marslm.distill.writers import Prompt, Written
from marslm.errors import InputError
from marslm.models.tiny import build_tokenizer
from marslm.rows_file import read_rows

TOKENIZER = build_tokenizer()


def text_of(prompt: Prompt, seed: int) -> Written:
    """Every fifth attempt is cut, short or one that came before; the others are all different."""
    texts = {0: "This one never ends and", 1: "Hi", 2: "Is this the same as before?"}
    return Written(texts.get(seed % 5, f" Tell me about the number {seed}. "), 7, seed % 5 == 0)


def source(writer: Any, folder: Path, **options: Any) -> PromptSource:
    return PromptSource(writer, TOKENIZER, folder / "a.prompts.jsonl", Known(), **options)


def collect(place: PromptSource, wanted: int) -> tuple[list[dict[str, Any]], Counter[str], int]:
    heard: list[int] = []
    rows, dropped = place.collect(wanted, heard.append)
    return rows, dropped, sum(heard)


def test_a_header_is_what_stands_before_a_users_text() -> None:
    ids = encode_prompt(TOKENIZER, [Message("user", "What is it?")])
    header = user_header(TOKENIZER)
    assert ids[: len(header)] == header
    assert TOKENIZER.decode(ids[len(header) :]).startswith("What is it?")


def test_attempts_are_drawn_after_the_header_and_filtered(scripted: Any, tmp_path: Path) -> None:
    writer = scripted(text_of)
    rows, dropped, tokens = collect(source(writer, tmp_path), 150)
    assert len(rows) == 150
    assert all(request.prompt == user_header(TOKENIZER) for request in writer.asked)
    assert set(writer.samplings) == {SAMPLING}
    assert tokens == 7 * len(writer.asked)
    attempts = len(writer.asked)
    fifth = attempts // 5
    for why, count in dropped.items():
        assert abs(count - fifth) <= 1, why
    assert set(dropped) == {"unfinished", "short", "duplicate"}
    assert len({row["prompt"] for row in rows}) == 150
    record = read_rows(tmp_path / "a.prompts.jsonl", "seed")
    assert sorted(row["seed"] for row in record) == list(range(attempts))


def test_a_second_run_makes_no_attempt_again(scripted: Any, tmp_path: Path) -> None:
    before = scripted(text_of)
    first, _, _ = collect(source(before, tmp_path), 20)
    writer = scripted(text_of)
    assert collect(source(writer, tmp_path), 20)[0] == first
    assert writer.asked == []
    more, _, _ = collect(source(writer, tmp_path), 200)
    assert more[:20] == first
    assert len({row["prompt"] for row in more}) == 200
    assert min(request.seed for request in writer.asked) == len(before.asked)


def test_interrupted_attempts_are_made_again(scripted: Any, tmp_path: Path) -> None:
    def fails_at_9(prompt: Prompt, seed: int) -> Written:
        if seed == 9:
            raise KeyboardInterrupt
        return text_of(prompt, seed)

    with pytest.raises(KeyboardInterrupt):
        collect(source(scripted(fails_at_9), tmp_path), 150)
    writer = scripted(text_of)
    rows, _, _ = collect(source(writer, tmp_path), 150)
    assert len(rows) == 150
    assert {request.seed for request in writer.asked} >= set(range(10))
    record = read_rows(tmp_path / "a.prompts.jsonl", "seed")
    assert len({row["seed"] for row in record}) == len(record)


def test_excluded_and_foreign_prompts_are_dropped(scripted: Any, tmp_path: Path) -> None:
    texts = ["Can you tell me how to bake a good bread?", "¿Cómo se hace un buen pan en casa?"]

    def write(prompt: Prompt, seed: int) -> Written:
        return Written([*texts, f"What is the number {seed} good for?"][min(seed, 2)], 3, False)

    for english, reasons in ((True, {"duplicate": 1, "language": 1}), (False, {"duplicate": 1})):
        folder = tmp_path / str(english)
        place = PromptSource(
            scripted(write), TOKENIZER, folder / "a.jsonl", Known(texts[:1]), english=english
        )
        assert place.collect(9, lambda tokens: None)[1] == reasons


def test_a_model_that_writes_no_prompts_is_told(scripted: Any, tmp_path: Path) -> None:
    writer = scripted(lambda prompt, seed: Written("Hm", 1, False))
    with pytest.raises(InputError, match=r"0 of 208 .*\(208 short\).*--prompts"):
        collect(source(writer, tmp_path), 100)
    with pytest.raises(InputError, match="0 of 208"):
        collect(source(writer, tmp_path), 100)
    assert len(writer.asked) == 208


def test_seeds_start_where_they_are_told(scripted: Any, tmp_path: Path) -> None:
    writer = scripted(text_of)
    collect(source(writer, tmp_path, first_seed=1000), 1)
    assert min(request.seed for request in writer.asked) == 1000


def test_prompts_of_an_earlier_run_are_excluded_too(scripted: Any, tmp_path: Path) -> None:
    def speak(prompt: Prompt, seed: int) -> Written:
        return Written(f"What does word{seed} do to item{seed}?", 7, False)

    first, _, _ = collect(source(scripted(speak), tmp_path), 3)
    held_out = first[1]["prompt"]
    known = Known([f"Say: {held_out}"])
    place = PromptSource(scripted(speak), TOKENIZER, tmp_path / "a.prompts.jsonl", known)
    rows, dropped, _ = collect(place, 3)
    assert len(rows) == 3
    assert held_out not in [row["prompt"] for row in rows]
    assert dropped["excluded"] == 1
