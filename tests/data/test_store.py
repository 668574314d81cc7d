"""Examples on disk are the examples that were written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marslm.data.encode import EncodeReport, Example
from marslm.data.store import TokenStore, write_store

EXAMPLES = [
    Example((5, 150_000, 7), (False, True, True), "a"),
    Example((1,), (False,), "b"),
    Example(tuple(range(40)), (*(False,) * 10, *(True,) * 30), "c"),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    report, prompts = EncodeReport(), list[list[int]]()

    def as_they_come():  # type: ignore[no-untyped-def]
        for example in EXAMPLES:
            report.kept += 1
            yield example
        prompts.append([3, 4])

    write_store(tmp_path / "store", as_they_come(), report=report, prompts=prompts)
    store = TokenStore(tmp_path / "store")
    assert [(e.ids, e.supervised) for e in store] == [(e.ids, e.supervised) for e in EXAMPLES]
    assert store[-1].ids == EXAMPLES[-1].ids
    assert [e.ids for e in store[1:]] == [e.ids for e in EXAMPLES[1:]]
    assert store.lengths.tolist() == [3, 1, 40]
    assert store.targets.tolist() == [2, 0, 30]
    assert (store.report.kept, store.prompts) == (3, [[3, 4]])
    with pytest.raises(IndexError):
        store[3]


def test_the_digest_tells_contents_apart(tmp_path: Path) -> None:
    def digest(name: str, examples: list[Example]) -> str:
        write = write_store(tmp_path / name, examples, report=EncodeReport(), prompts=[])
        return write.digest

    assert digest("a", EXAMPLES) == digest("b", EXAMPLES) != digest("c", EXAMPLES[:2])
    other_turns = [replace(each, supervised=(True,) * len(each.ids)) for each in EXAMPLES]
    assert digest("d", other_turns) != digest("a", EXAMPLES)


def test_half_a_store_is_none(tmp_path: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield EXAMPLES[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_store(tmp_path / "store", broken(), report=EncodeReport(), prompts=[])
    assert list(tmp_path.iterdir()) == []
