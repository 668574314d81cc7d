"""`distill` from prompts to rows: what is kept, dropped, counted and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marslm.data.dialogues import Message, read_dialogues
from marslm.distill.answers import AnswerProgress
from marslm.distill.distill import distill
from marslm.distill.job import DistillJob, DistillReport, PromptProgress
from marslm.distill.writers import Prompt, Written
from marslm.errors import InputError
from marslm.models.tiny import build_tokenizer
from marslm.rows_file import read_rows

TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
TOKENIZER = build_tokenizer()
SPIDER = "How many legs does a spider have in all?"


def speak(prompt: Prompt, seed: int) -> Written:
    """Self-write a prompt from a header; answer messages, one of them at too great a length."""
    if not isinstance(prompt[0], Message):
        return Written(f"What is the number {seed} good for?", 8, False)
    said = prompt[-1].content
    return Written("" if said == "Say nothing." else f"{said}!", 5, said.startswith("Long"))


@pytest.fixture
def asked(tmp_path: Path) -> str:
    path = tmp_path / "asked.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt": "Name a cat."},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "?"},
            ]
        },
        {"prompt": "Name a  CAT"},
        {"messages": [{"role": "user", "content": "Look!"}], "tools": [TOOL]},
        {"prompt": "Long story, please."},
        {"prompt": "Say nothing."},
        {"prompt": "words " * 400},
        {"prompt": SPIDER, "response": "gold"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(job: DistillJob, writer: Any, listener: Any = lambda event: None) -> DistillReport:
    return distill(job, writer, TOKENIZER, listener)


def job(folder: Path, **options: Any) -> DistillJob:
    return DistillJob("tiny", folder / "out.jsonl", **options)


def test_given_prompts_become_chat_rows(scripted: Any, asked: str, tmp_path: Path) -> None:
    report = run(job(tmp_path, prompts=asked), scripted(speak))
    rows = {row["source"]: row for row in read_rows(tmp_path / "out.jsonl")}
    assert [message["content"] for message in rows["asked.jsonl:2"]["messages"]] == [
        "Be brief.",
        "?",
        "?!",
    ]
    assert rows["asked.jsonl:5"]["cut"] is True
    assert "cut" not in rows["asked.jsonl:1"]
    assert report.answers_dropped == {"duplicate": 1, "with tools": 1, "empty": 1, "too long": 1}
    assert (report.rows, report.tokens, report.cut, report.new_tokens) == (4, 20, 1, 25)


def test_the_rows_are_what_training_reads(scripted: Any, asked: str, tmp_path: Path) -> None:
    run(job(tmp_path, prompts=asked), scripted(speak))
    dialogues = read_dialogues(str(tmp_path / "out.jsonl"))
    assert {(d.prompt[-1].content, d.answer, d.cut) for d in dialogues} == {
        ("Name a cat.", "Name a cat.!", False),
        ("?", "?!", False),
        ("Long story, please.", "Long story, please.!", True),
        (SPIDER, f"{SPIDER}!", False),
    }


def test_excluded_prompts_are_left_out(scripted: Any, asked: str, tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text(
        '{"prompt": "Say how many legs does a spider have in all, exactly"}\n'
    )
    options = {"prompts": asked, "exclude": [str(tmp_path / "held.jsonl")]}
    report = run(job(tmp_path, **options), scripted(speak))
    assert report.answers_dropped["excluded"] == 1
    assert "spider" not in (tmp_path / "out.jsonl").read_text()


def test_rows_of_an_earlier_run_are_not_excluded_too_late(
    scripted: Any, asked: str, tmp_path: Path
) -> None:
    """Whoever holds prompts back believes that no row of the file is near them."""
    run(job(tmp_path, prompts=asked), scripted(speak))
    before = (tmp_path / "out.jsonl").read_text()
    (tmp_path / "held.jsonl").write_text(json.dumps({"prompt": SPIDER.upper()}) + "\n")
    options = {"prompts": asked, "exclude": [str(tmp_path / "held.jsonl")]}
    place = next(n for n, line in enumerate(before.splitlines(), 1) if SPIDER in line)
    with pytest.raises(InputError, match=rf"out\.jsonl: excluded prompts are in line {place}: "):
        run(job(tmp_path, **options), scripted(speak))
    assert (tmp_path / "out.jsonl").read_text() == before


def test_a_second_run_answers_only_what_is_missing(
    scripted: Any, asked: str, tmp_path: Path
) -> None:
    first = run(job(tmp_path, prompts=asked, rows=2), scripted(speak))
    before = (tmp_path / "out.jsonl").read_text()
    writer = scripted(speak)
    second = run(job(tmp_path, prompts=asked), writer)
    assert (first.rows, second.rows) == (2, 4)
    assert len(writer.asked) == 3
    assert (tmp_path / "out.jsonl").read_text().startswith(before)
    # A prompt's seed does not depend on what else is answered.
    alone = scripted(speak)
    run(DistillJob("tiny", tmp_path / "new.jsonl", prompts=asked), alone)
    seeds = {request.prompt: request.seed for request in alone.asked}
    assert all(seeds[request.prompt] == request.seed for request in writer.asked)


def test_self_written_prompts_are_answered(scripted: Any, tmp_path: Path) -> None:
    events: list[Any] = []
    report = run(job(tmp_path, self_prompts=6, seed=40), scripted(speak), events.append)
    rows = read_rows(tmp_path / "out.jsonl")
    assert len(rows) == report.rows == 6
    for row in rows:
        assert row["messages"][0]["content"] == f"What is the number {row['seed']} good for?"
        assert row["source"] == "self"
    assert (tmp_path / "out.prompts.jsonl").exists()
    prompts = [e for e in events if isinstance(e, PromptProgress)]
    answers = [e for e in events if isinstance(e, AnswerProgress)]
    assert (prompts[0].kept, prompts[-1].wanted) == (1, 6)
    assert (prompts[-1].kept, prompts[-1].seconds_left) == (6, 0)  # attempts beyond 6 do not count
    assert (answers[-1].done, answers[-1].total, answers[-1].seconds_left) == (6, 6, 0)


def test_what_was_finished_before_an_error_is_kept(
    scripted: Any, asked: str, tmp_path: Path
) -> None:
    def fail(prompt: Prompt, seed: int) -> Written:
        if prompt[-1] == Message("user", "?"):
            raise InputError("the server is gone")
        return speak(prompt, seed)

    with pytest.raises(InputError, match="gone"):
        run(job(tmp_path, prompts=asked), scripted(fail))
    assert len(read_rows(tmp_path / "out.jsonl")) == 2
    assert run(job(tmp_path, prompts=asked), scripted(speak)).rows == 4


def test_another_models_file_is_refused(scripted: Any, asked: str, tmp_path: Path) -> None:
    run(job(tmp_path, prompts=asked), scripted(speak))
    with pytest.raises(InputError, match="has answers of tiny: name another output for other"):
        run(DistillJob("other", tmp_path / "out.jsonl", prompts=asked), scripted(speak))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to answer"),
        ({"self_prompts": -1}, "self_prompts is -1"),
        ({"self_prompts": 1, "max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"self_prompts": 1, "max_length": 256}, "leaves no room"),
        ({"self_prompts": 1, "seed": -3}, "seed is -3"),
    ],
)
def test_numbers_that_cannot_be_meant(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(tmp_path, **options)


def test_a_report_is_one_flat_row() -> None:
    report = DistillReport(rows=2, tokens=9, cut=1, new_tokens=30, seconds=2.0)
    report.prompts_dropped["short"] = 3
    assert report.row() == {
        "rows": 2,
        "tokens": 9,
        "cut": 1,
        "prompts_dropped_short": 3,
        "new_tokens": 30,
        "seconds": 2.0,
        "tokens_per_second": 15.0,
    }
