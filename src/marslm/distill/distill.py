"""The whole of `marslm distill`: prompts, given or self-written, and the model's answers to them.

The result is a file of chat rows that `marslm tune --answers gold` reads. Rows are appended as they
finish, and a second run goes on where the first one stopped. Knows nothing about how progress is
shown.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from marslm.data.dialogues import Message, read_dialogues
from marslm.data.template import turn_of
from marslm.distill.answers import AnswerMeter
from marslm.distill.filters import Known
from marslm.distill.job import DistillJob, DistillReport, Listener, PromptProgress
from marslm.distill.self_prompts import PromptSource
from marslm.distill.writers import Request, Sampling, Writer, prompt_ids
from marslm.errors import InputError
from marslm.report import Row
from marslm.rows_file import append_row, read_rows


@dataclass(frozen=True)
class _Wanted:
    """A prompt to answer. origin: fields of its row that say where it comes from."""

    messages: tuple[Message, ...]
    origin: Row

    @property
    def key(self) -> str:
        return _key(turn_of(message) for message in self.messages)


def distill(
    job: DistillJob,
    writer: Writer,
    tokenizer: PreTrainedTokenizerBase,
    listener: Listener = lambda event: None,
) -> DistillReport:
    """Write the prompts and answers that `job.output` still lacks; return what it then holds.

    Raises InputError for bad input, before anything is written, and when the writer fails; what was
    finished until then is kept.
    """
    start, report = time.monotonic(), DistillReport()
    there = _rows_there(job)
    excluded = _excluded(job.exclude)
    _check_not_excluded(job, there, excluded)
    wanted = _given(job, excluded, report)
    wanted += _self_written(job, writer, tokenizer, excluded, report, listener)
    done = {_key(row["messages"][:-1]) for row in there}
    missing = _with_room(job, tokenizer, (w for w in wanted if w.key not in done), report)
    there += _answer(job, writer, missing, report, listener)
    report.rows, report.seconds = len(there), time.monotonic() - start
    report.tokens = sum(row["tokens"] for row in there)
    report.cut = sum("cut" in row for row in there)
    return report


def _rows_there(job: DistillJob) -> list[dict[str, Any]]:
    rows = read_rows(job.output, "messages", "model", "tokens")
    others = {row["model"] for row in rows} - {job.model}
    if others:
        raise InputError(
            f"{job.output} has answers of {', '.join(sorted(others))}: name another output for "
            f"{job.model}"
        )
    return rows


def _excluded(sources: Iterable[str]) -> list[str]:
    """Return the users' texts of the excluded files."""
    return [
        message.content
        for source in sources
        for dialogue in read_dialogues(source, need_answers=False)
        for message in dialogue.prompt
        if message.role == "user"
    ]


def _check_not_excluded(job: DistillJob, rows: list[dict[str, Any]], excluded: list[str]) -> None:
    """Raise InputError if rows of an earlier run, which knew of less, are excluded now."""
    known = Known(excluded)
    lines = [
        str(number)
        for number, row in enumerate(rows, 1)
        if known.why_known(_text(message["content"] for message in row["messages"][:-1]))
    ]
    if lines:
        raise InputError(
            f"{job.output}: excluded prompts are in line {', '.join(lines)}: delete that, or name "
            "another output"
        )


def _text(contents: Iterable[str]) -> str:
    """Return a prompt as the text by which it is known."""
    return "\n".join(contents)


def _given(job: DistillJob, excluded: list[str], report: DistillReport) -> list[_Wanted]:
    """Return the given prompts, without repeated and excluded ones.

    Prompts that offer tools are left out: an answer that calls one would be kept as text.
    """
    if job.prompts is None:
        return []
    known, wanted = Known(excluded), []
    for dialogue in read_dialogues(job.prompts, rows=job.rows, need_answers=False):
        text = _text(message.content for message in dialogue.prompt)
        why = "with tools" if dialogue.tools else known.why_known(text)
        if why:
            report.answers_dropped[why] += 1
            continue
        known.add(text)
        wanted.append(_Wanted(dialogue.prompt, {"source": dialogue.source}))
    return wanted


def _self_written(
    job: DistillJob,
    writer: Writer,
    tokenizer: PreTrainedTokenizerBase,
    excluded: list[str],
    report: DistillReport,
    listener: Listener,
) -> list[_Wanted]:
    """Return the self-written prompts, those of earlier runs first."""
    if not job.self_prompts:
        return []
    start = time.monotonic()

    def heard(tokens: int) -> None:
        report.new_tokens += tokens

    def attempted(kept: int, dropped: Counter[str], new: int) -> None:
        seconds = time.monotonic() - start
        listener(
            PromptProgress(
                min(kept, job.self_prompts),
                job.self_prompts,
                dropped.total(),
                report.new_tokens,
                seconds,
                new,
            )
        )

    source = PromptSource(
        writer, tokenizer, job.prompts_file, Known(excluded), job.seed, job.english
    )
    rows, report.prompts_dropped = source.collect(job.self_prompts, heard, attempted)
    return [
        _Wanted((Message("user", row["prompt"]),), {"source": "self", "seed": row["seed"]})
        for row in rows
    ]


def _with_room(
    job: DistillJob,
    tokenizer: PreTrainedTokenizerBase,
    wanted: Iterable[_Wanted],
    report: DistillReport,
) -> list[_Wanted]:
    """Return the prompts that leave room for an answer of full length."""
    room = job.max_length - job.max_new_tokens
    kept = []
    for prompt in wanted:
        if len(prompt_ids(tokenizer, prompt.messages)) <= room:
            kept.append(prompt)
        else:
            report.answers_dropped["too long"] += 1
    return kept


def _answer(
    job: DistillJob,
    writer: Writer,
    wanted: list[_Wanted],
    report: DistillReport,
    listener: Listener,
) -> list[dict[str, Any]]:
    """Answer the prompts, append the rows, and return them."""
    meter = AnswerMeter(len(wanted), listener)
    requests = [
        Request(str(number), prompt.messages, _seed(job.seed, prompt.key))
        for number, prompt in enumerate(wanted)
    ]
    sampling = Sampling(job.max_new_tokens, job.temperature)
    rows: list[dict[str, Any]] = []
    for request, written in writer.write(requests, sampling, meter.heard):
        meter.finished()
        if not written.text.strip():
            report.answers_dropped["empty"] += 1
            continue
        prompt = wanted[int(request.key)]
        said = Message("assistant", written.text)
        row = {
            "messages": [turn_of(message) for message in (*prompt.messages, said)],
            **prompt.origin,
            "model": job.model,
            "tokens": written.tokens,
            **({"cut": True} if written.cut else {}),
        }
        append_row(job.output, row)
        rows.append(row)
    report.new_tokens += meter.tokens
    return rows


def _seed(seed: int, key: str) -> int:
    """Return a seed that depends on the prompt and not on what else is answered."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {key}".encode(), digest_size=4).digest(), "big")


def _key(messages: Iterable[Row]) -> str:
    return repr([(message["role"], message["content"]) for message in messages])
