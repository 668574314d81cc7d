"""The prompts to measure speed on: which of them, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from marslm.data import Message, read_prompts
from marslm.errors import InputError

WriteRows = Callable[[str, Sequence[object]], str]

MT_BENCH = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
OTHERS = ("translation", "summarization", "qa", "math_reasoning", "rag")


def question(category: str, number: int) -> dict[str, object]:
    return {
        "question_id": number,
        "category": category,
        "turns": [f"{category} {number}", "second turn"],
        "reference": ["a note for the judge"],
    }


@pytest.fixture
def folder(tmp_path: Path, write_rows: WriteRows) -> str:
    """A folder with 2 questions of each MT-bench category and 3 of every other kind."""
    rows = [question(category, n) for category in MT_BENCH for n in range(2)]
    rows += [question(category, n) for category in OTHERS for n in range(3)]
    write_rows("spec_bench.jsonl.gz", rows)
    return str(tmp_path)


def test_kinds_take_turns_in_file_order(folder: str) -> None:
    prompts = read_prompts("spec_bench", count=12, data_folder=folder)
    assert [p.kind for p in prompts] == ["mt_bench", *OTHERS] * 2
    assert [p.messages[0].content for p in prompts[:3]] == [
        "writing 0",
        "translation 0",
        "summarization 0",
    ]
    assert prompts[6].messages == (Message("user", "writing 1"),)
    assert (prompts[1].source, prompts[1].answer) == ("spec_bench.jsonl.gz:17", None)


def test_all_prompts_once_though_kinds_differ_in_size(folder: str) -> None:
    prompts = read_prompts("spec_bench", count=None, data_folder=folder)
    assert Counter(p.kind for p in prompts) == {"mt_bench": 16, **dict.fromkeys(OTHERS, 3)}
    assert len({p.source for p in prompts}) == 31


def test_the_folder_comes_from_the_environment(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARSLM_DATA", folder)
    assert len(read_prompts("spec_bench", count=6, data_folder=None)) == 6


def test_the_folder_given_comes_first(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARSLM_DATA", str(tmp_path / "elsewhere"))
    assert len(read_prompts("spec_bench", count=6, data_folder=folder)) == 6


def test_an_unknown_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = r"set MARSLM_DATA to the folder that holds spec_bench\.jsonl\.gz"
    monkeypatch.delenv("MARSLM_DATA", raising=False)
    with pytest.raises(InputError, match=f"its folder is not known; {advice}"):
        read_prompts("spec_bench", count=6, data_folder=None)
    monkeypatch.setenv("MARSLM_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"there is no {tmp_path}.*; {advice}"):
        read_prompts("spec_bench", count=6, data_folder=None)


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([], "no rows"),
        ([{"turns": ["Q"]}], "spec_bench.jsonl.gz:1: no category"),
        ([{"category": "qa", "turns": []}], "spec_bench.jsonl.gz:1: turns"),
    ],
)
def test_a_file_that_is_not_spec_bench(
    rows: Sequence[object], part: str, tmp_path: Path, write_rows: WriteRows
) -> None:
    write_rows("spec_bench.jsonl.gz", rows)
    with pytest.raises(InputError, match=part):
        read_prompts("spec_bench", count=None, data_folder=str(tmp_path))


def test_any_other_value_is_a_file(write_rows: WriteRows) -> None:
    rows = [{"prompt": "P"}, {"question": "Q", "answer": "A"}, {"prompt": "late"}]
    first, second = read_prompts(write_rows("mine.jsonl", rows), count=2, data_folder=None)
    assert (first.messages, first.kind, first.answer) == ((Message("user", "P"),), "file", None)
    assert (second.messages, second.answer) == ((Message("user", "Q"),), "A")
    assert second.source == "mine.jsonl:2"


@pytest.mark.parametrize("name", ["spec_bench", "mine.jsonl"])
def test_count_below_one(name: str) -> None:
    with pytest.raises(InputError, match="at least one prompt"):
        read_prompts(name, count=0, data_folder=None)
