"""The prompts a speed measurement runs on: Spec-Bench's six kinds, or a file of one's own.

Spec-Bench is read from the user's folder, never bundled. Knows nothing about how the prompts are
decoded or timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from marslm.data.dialogues import Message, dialogue_of_row, read_dialogues
from marslm.data.folder import data_file
from marslm.data.rows import Row, read_rows
from marslm.errors import InputError

SPEC_BENCH = "spec_bench"
FILE_NAME = "spec_bench.jsonl.gz"
# The other kinds are categories of their own; MT-bench comes split into these.
MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)


@dataclass(frozen=True)
class BenchPrompt:
    """The messages to answer, their kind of task, their place, and an answer where one is known."""

    messages: tuple[Message, ...]
    kind: str
    source: str
    answer: str | None


def read_prompts(
    path_or_name: str, *, count: int | None, data_folder: str | None
) -> list[BenchPrompt]:
    """Return at most `count` (None: all) prompts of Spec-Bench or of a file.

    "spec_bench" reads spec_bench.jsonl.gz in `data_folder` (None: the folder that the environment
    variable MARSLM_DATA names) and takes its kinds in turn, first turns only, so that 60 prompts
    are 10 of each kind. Anything else goes to `read_dialogues` and is of kind "file".
    """
    if count is not None and count < 1:
        raise InputError(f"count is {count}: ask for at least one prompt")
    if path_or_name == SPEC_BENCH:
        return _spec_bench(data_file(FILE_NAME, SPEC_BENCH, folder=data_folder))[:count]
    return [
        BenchPrompt(dialogue.prompt, "file", dialogue.source, dialogue.answer)
        for dialogue in read_dialogues(path_or_name, rows=count, need_answers=False)
    ]


def _spec_bench(file: Path) -> list[BenchPrompt]:
    by_kind: dict[str, list[BenchPrompt]] = {}
    for where, row in read_rows(str(file)):
        prompt = _prompt(row, where)
        by_kind.setdefault(prompt.kind, []).append(prompt)
    if not by_kind:
        raise InputError(f"{file}: no rows; copy the file anew")
    return list(_in_turn(by_kind.values()))


def _prompt(row: Row, where: str) -> BenchPrompt:
    category = row.get("category")
    if not isinstance(category, str):
        raise InputError(f"{where}: no category; is this Spec-Bench's own question file?")
    messages = dialogue_of_row(row, where, need_answers=False).messages
    kind = "mt_bench" if category in MT_BENCH else category
    # The references are notes for a judge, in several shapes, not answers to compare with.
    return BenchPrompt(messages, kind, where, None)


def _in_turn(groups: Iterable[list[BenchPrompt]]) -> Iterable[BenchPrompt]:
    rounds = zip_longest(*groups)
    return (prompt for prompt in chain.from_iterable(rounds) if prompt is not None)
