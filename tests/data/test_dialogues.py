"""Every row form that is read, and every error, with the place that it names."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import datasets
import pytest

from marslm.data import Dialogue, Message, read_dialogues
from marslm.errors import InputError

WriteRows = Callable[[str, Sequence[object]], str]

ASKED, ANSWERED = Message("user", "Q"), Message("assistant", "A")


def failure(source: str, *, rows: int | None = None, need_answers: bool = True) -> str:
    with pytest.raises(InputError) as caught:
        read_dialogues(source, rows=rows, need_answers=need_answers)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_prompt_and_answer_split_at_the_last_assistant_message() -> None:
    system, more = Message("system", "S"), Message("user", "again")
    dialogue = Dialogue((system, ASKED, ANSWERED, more, Message("assistant", "B")), "x:1")
    assert dialogue.prompt == (system, ASKED, ANSWERED, more)
    assert dialogue.answer == "B"


def test_messages_after_the_last_answer_are_not_its_prompt() -> None:
    dialogue = Dialogue((ASKED, ANSWERED, Message("user", "thanks")), "x:1")
    assert dialogue.prompt == (ASKED,)


def test_without_an_answer_all_messages_are_the_prompt() -> None:
    dialogue = Dialogue((Message("system", "S"), ASKED), "x:1")
    assert (dialogue.prompt, dialogue.answer) == (dialogue.messages, None)


def test_a_row_says_that_its_answer_was_cut(write_rows: WriteRows) -> None:
    row = {"prompt": "Q", "response": "A"}
    source = write_rows("a.jsonl", [row, {**row, "cut": True}, {**row, "cut": False}])
    assert [dialogue.cut for dialogue in read_dialogues(source)] == [False, True, False]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]},
        {"prompt": "Q", "response": "A"},
        {"prompt": "Q", "completion": "A"},
        {"question": "Q", "answer": "A"},
        {"instruction": "Q", "output": "A"},
        {"instruction": "Q", "input": "", "output": "A"},
        {"instruction": "Q", "input": None, "output": "A"},
        {"prompt": "Q", "response": "A", "messages": None, "id": 7},
    ],
)
def test_answered_forms(row: object, write_rows: WriteRows) -> None:
    (dialogue,) = read_dialogues(write_rows("a.jsonl", [row]))
    assert dialogue == Dialogue((ASKED, ANSWERED), "a.jsonl:1")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Q"},
        {"turns": ["Q", "and then?"]},
        {"prompt": "Q", "response": None},
        {"messages": [{"role": "user", "content": "Q"}]},
    ],
)
def test_answerless_forms_only_when_answers_are_not_needed(
    row: object, write_rows: WriteRows
) -> None:
    path = write_rows("a.jsonl", [row])
    (dialogue,) = read_dialogues(path, need_answers=False)
    assert dialogue.messages == (ASKED,)
    message = failure(path)
    assert message.startswith("a.jsonl:1: no assistant message")
    assert "have the model write the answers" in message


def test_answers_are_kept_when_they_are_not_needed(write_rows: WriteRows) -> None:
    path = write_rows("a.jsonl", [{"prompt": "Q", "response": "A"}])
    assert read_dialogues(path, need_answers=False)[0].answer == "A"


def test_input_follows_the_instruction_after_a_blank_line(write_rows: WriteRows) -> None:
    row = {"instruction": "Translate.", "input": "un chat", "output": "a cat"}
    (dialogue,) = read_dialogues(write_rows("a.jsonl", [row]))
    assert dialogue.prompt == (Message("user", "Translate.\n\nun chat"),)


def test_calculator_marks_leave_answers_to_questions_only(write_rows: WriteRows) -> None:
    marked = "48/2 = <<48/2=24>>24, $<<2*.5=1>>1; x << 1 and y >> 2\n#### 24"
    rows = [{"question": "Q", "answer": marked}, {"prompt": "Q", "response": marked}]
    stripped, whole = read_dialogues(write_rows("a.jsonl", rows))
    assert stripped.answer == "48/2 = 24, $1; x << 1 and y >> 2\n#### 24"
    assert whole.answer == marked


def test_all_four_roles_and_their_text_are_kept_as_written(write_rows: WriteRows) -> None:
    roles = ("system", "user", "assistant", "tool", "assistant")
    parts = [{"role": role, "content": f" {role}\n", "name": "ignored"} for role in roles]
    (dialogue,) = read_dialogues(write_rows("a.jsonl", [{"messages": parts}]))
    assert dialogue.messages == tuple(Message(role, f" {role}\n") for role in roles)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_lines_are_counted_with_the_blank_ones(name: str, tmp_path: Path) -> None:
    row = json.dumps({"prompt": "Q", "response": "naïve \u2028 line"}, ensure_ascii=False)
    data = f"\ufeff\n{row}\n   \n{row}\n\n".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    dialogues = read_dialogues(str(path))
    assert [d.source for d in dialogues] == [f"{name}:2", f"{name}:4"]
    assert dialogues[1].answer == "naïve \u2028 line"


def test_a_json_list(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"prompt": str(n), "response": "A"} for n in range(3)], indent=1))
    dialogues = read_dialogues(str(path))
    assert [d.prompt[0].content for d in dialogues] == ["0", "1", "2"]
    assert dialogues[2].source == "a.json:3"


def test_rows_takes_the_first_and_does_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "Q", "response": "A"}\n' * 2 + "broken\n")
    assert len(read_dialogues(str(path), rows=2)) == 2
    assert "a.jsonl:3" in failure(str(path), rows=3)


def test_rows_below_one_are_refused(write_rows: WriteRows) -> None:
    assert "at least one row" in failure(write_rows("a.jsonl", []), rows=0)


def test_a_missing_file_suggests_its_neighbour(write_rows: WriteRows) -> None:
    there = write_rows("train.jsonl.gz", [])
    assert failure(there.removesuffix(".gz")).endswith(f"did you mean {there}?")


def test_a_missing_file_without_neighbours(tmp_path: Path) -> None:
    assert "check the path" in failure(str(tmp_path / "a.jsonl"))
    assert f"folder {tmp_path / 'no'} does not exist" in failure(str(tmp_path / "no" / "a.jsonl"))
    assert "owner/name" in failure("gsm8k")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "is a folder" in failure(str(tmp_path))


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,response\n")
    assert "convert it to one of .jsonl, .jsonl.gz, .json" in failure(str(path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json"])
def test_an_empty_file(name: str, write_rows: WriteRows) -> None:
    assert "no rows" in failure(write_rows(name, []))


def test_an_empty_list(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[]")
    assert "no rows" in failure(str(path))


def test_malformed_json_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "Q", "response": "A"}\n\n{"prompt": "Q",\n')
    assert f"{path}:3: malformed JSON" in failure(str(path))


def test_malformed_json_in_a_list_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n{"prompt": "Q", "response": "A"},\n{"prompt": }\n]')
    assert f"{path}:3: malformed JSON" in failure(str(path))


def test_json_lines_under_the_wrong_name(write_rows: WriteRows) -> None:
    assert "belongs in a .jsonl file" in failure(write_rows("a.json", [{"prompt": "Q"}] * 2))
    assert "not a JSON list" in failure(write_rows("b.json", [{"prompt": "Q"}]))


def test_a_row_that_is_no_object(write_rows: WriteRows) -> None:
    assert failure(write_rows("a.jsonl", [["Q", "A"]])).startswith("a.jsonl:1: a JSON list")


def test_an_unrecognised_form_names_its_keys_and_the_forms(write_rows: WriteRows) -> None:
    good = {"prompt": "Q", "response": "A"}
    message = failure(write_rows("a.jsonl", [good, {"query": "Q", "reply": "A"}]))
    assert message.startswith("a.jsonl:2: ")
    assert "keys found query, reply" in message
    for form in ("messages", "prompt+response", "question+answer", "instruction+output", "turns"):
        assert form in message


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"prompt": " \n", "response": "A"}, "prompt is empty"),
        ({"prompt": "Q", "response": ""}, "response is empty"),
        ({"messages": [{"role": "user", "content": ""}]}, "the user message is empty"),
        ({"messages": [{"role": "assistant", "content": None}]}, "the assistant message is empty"),
        ({"messages": []}, "messages is not a list with something in it"),
        ({"turns": []}, "turns is not a list with something in it"),
        ({"turns": "Q"}, "turns is not a list"),
        ({"messages": [{"role": "user"}]}, "needs a role and a content"),
        ({"messages": ["Q"]}, "needs a role and a content"),
        ({"messages": [{"role": "human", "content": "Q"}]}, "role 'human' is not one of system"),
        ({"prompt": ["Q"], "response": "A"}, "prompt is a list, not text"),
        ({"prompt": "\ud800", "response": "A"}, "half a surrogate pair"),
    ],
)
def test_unusable_content(row: object, part: str, write_rows: WriteRows) -> None:
    message = failure(write_rows("a.jsonl", [row]), need_answers=False)
    assert message.startswith("a.jsonl:1: ")
    assert part in message


def test_gz_that_is_not_gz(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_text('{"prompt": "Q", "response": "A"}\n')
    assert "not whole gzip data" in failure(str(path))


def test_gz_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "Q", "response": "A"}\n')[:-9])
    assert "not whole gzip data" in failure(str(path))


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"prompt": "é", "response": "A"}'.encode("latin-1"))
    assert "not UTF-8" in failure(str(path))


def test_a_hub_data_set_streams_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    pulled = itertools.count()

    def endless() -> Iterator[dict[str, str]]:
        for number in pulled:
            yield {"prompt": f"Q{number}", "response": "A"}

    def load(name: str, *, split: str, streaming: bool) -> Iterator[dict[str, str]]:
        asked.append((name, split, streaming))
        return endless()

    monkeypatch.setattr(datasets, "load_dataset", load)
    dialogues = read_dialogues("some-owner/some.set:test", rows=3)
    assert [d.prompt[0].content for d in dialogues] == ["Q0", "Q1", "Q2"]
    assert dialogues[2].source == "some-owner/some.set:test:3"
    assert next(pulled) == 3
    read_dialogues("some-owner/some.set", rows=1)
    assert asked == [("some-owner/some.set", "test", True), ("some-owner/some.set", "train", True)]


def test_a_hub_data_set_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(*_: object, **__: object) -> None:
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    message = failure("owner/name:test")
    assert "is not a file here" in message
    assert "owner/name split test cannot be read (no route)" in message
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "names").touch()
    assert "looks like a missing file, did you mean owner/names?" in failure("owner/name")


def test_a_stream_that_breaks_off_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[dict[str, str]]:
        yield {"prompt": "Q", "response": "A"}
        raise OSError("reset by peer")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: broken())
    assert "reset by peer" in failure("owner/name", rows=2)


def test_a_path_never_asks_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("asked the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    for source in ("data/a.jsonl", "./data/a", "/data/a", "~/a", "data/sub/a", "data/a.csv.gz"):
        assert "no such file" in failure(source)


def test_importing_the_package_is_light() -> None:
    heavy = ("torch", "transformers", "datasets", "jinja2")
    check = f"import sys, marslm.data; sys.exit(' '.join({set(heavy)!r} & set(sys.modules)))"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, env=paths, check=False
    )
    assert done.stderr.strip() == ""
