"""The data's own answers as training examples, and the prompts that are held out.

Rows are encoded as they are read. Large data go to a store on disk, keyed by all that shapes it, so
that they are encoded once and every process maps the same files. Knows nothing about training.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accelerate import PartialState
from huggingface_hub import HfApi

from marslm.data.dialogues import Dialogue, iterate_dialogues
from marslm.data.encode import EncodeReport, Example, encode_each, encode_prompt
from marslm.data.rows import ARITHMETIC
from marslm.data.store import TokenStore, write_store
from marslm.errors import InputError
from marslm.models.gguf import cache_folder
from marslm.models.loading import MarsModel
from marslm.models.record import marks_of

if TYPE_CHECKING:
    from marslm.tuning.tune import TuneJob

_LARGE = 20_000_000
"""Bytes of a file from which on a store is worth its place on disk."""


def gold_examples(
    job: TuneJob, model: MarsModel
) -> tuple[Sequence[Example], EncodeReport, list[list[int]]]:
    """Return the examples, what became of the rows, and the held-out prompts.

    The last `held_out` of the rows that are read are held out. Raises InputError for data that
    cannot be used.
    """
    place = _store_place(job, model)
    if place is None:
        report, prompts = EncodeReport(), list[list[int]]()
        return list(_encoded(job, model, report, prompts)), report, prompts
    with PartialState().main_process_first():
        if not place.exists():
            report, prompts = EncodeReport(), list[list[int]]()
            examples = _encoded(job, model, report, prompts)
            write_store(place, examples, report=report, prompts=prompts)
    store = TokenStore(place)
    return store, store.report, store.prompts


def hold_back(
    dialogues: Iterable[Dialogue], count: int, held_out: list[Dialogue]
) -> Iterator[Dialogue]:
    """Yield all but the last `count` dialogues, and put those into `held_out` at the end."""
    waiting: deque[Dialogue] = deque()
    for dialogue in dialogues:
        waiting.append(dialogue)
        if len(waiting) > count:
            yield waiting.popleft()
    held_out.extend(waiting)


def say_if_short(job: TuneJob, trained: int, held_out: int) -> None:
    """Raise InputError if nothing is left to train on; warn if it is less than was asked for."""
    found = trained + held_out
    if trained < 1:
        raise InputError(
            f"{job.data} has {found} rows and {job.held_out} are to be held out: "
            "give more rows or hold out fewer"
        )
    if job.rows is not None and trained < job.rows:
        warnings.warn(
            f"{job.data} has {found} rows: {trained} to train on, not the {job.rows} that "
            f"were asked for, and {held_out} held out",
            stacklevel=2,
        )


def _encoded(
    job: TuneJob, model: MarsModel, report: EncodeReport, prompts: list[list[int]]
) -> Iterator[Example]:
    """Yield examples, filling in `report` and, at the end, `prompts`."""
    wanted = None if job.rows is None else job.rows + job.held_out
    held_out: list[Dialogue] = []
    training = hold_back(iterate_dialogues(job.data, rows=wanted), job.held_out, held_out)
    counted = _Counted(training)

    def checked() -> Iterator[Dialogue]:
        yield from counted
        # Before the encoder finds that nothing is left: this names the reason.
        say_if_short(job, counted.count, len(held_out))

    yield from encode_each(
        model.tokenizer,
        checked(),
        report=report,
        max_length=job.config.max_length,
        turns=job.turns,
    )
    prompts += held_out_prompts(job, model, held_out)


class _Counted:
    """Counts what is drawn from an iterable."""

    def __init__(self, dialogues: Iterable[Dialogue]) -> None:
        self._dialogues = dialogues
        self.count = 0

    def __iter__(self) -> Iterator[Dialogue]:
        for dialogue in self._dialogues:
            self.count += 1
            yield dialogue


def held_out_prompts(
    job: TuneJob, model: MarsModel, dialogues: Sequence[Dialogue]
) -> list[list[int]]:
    """Return the held-out prompts that are no longer than a training sequence may be."""
    encoded = [
        encode_prompt(model.tokenizer, dialogue.prompt, tools=dialogue.tools)
        for dialogue in dialogues
    ]
    return [ids for ids in encoded if len(ids) < job.config.max_length]


def _store_place(job: TuneJob, model: MarsModel) -> Path | None:
    """Return the folder of the store that fits, None for data that need none."""
    version = _version(job.data)
    if version is None:
        return None
    facts = [
        version,
        job.rows,
        job.held_out,
        job.config.max_length,
        job.turns,
        marks_of(model.network, model.tokenizer).tokenizer,
        model.tokenizer.chat_template,
    ]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_folder() / "tokens" / key


def _version(data: str) -> str | None:
    """Return a mark of the data's contents, None for little data."""
    path = Path(data).expanduser()
    if path.is_file():
        stat = path.stat()
        small = stat.st_size < _LARGE
        return None if small else f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    if path.exists() or data == ARITHMETIC or "/" not in data:
        return None
    return _hub_version(data)


def _hub_version(data: str) -> str | None:
    """Return a Hub data set's commit; None if it cannot be asked for, and reading then says why."""
    try:
        return f"{data} {HfApi().dataset_info(data.partition(':')[0]).sha}"
    except Exception:  # offline, gated, misnamed, or a file that is missing
        return None
