"""The model's own answers to given prompts, as training examples.

A model that will be asked to reproduce its own text learns most from that text. Answers are
written to a file as they finish, so an interrupted run goes on where it stopped. Knows nothing
about training.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marslm.data.dialogues import Dialogue
from marslm.data.encode import Example, encode_prompt, example_from_answer
from marslm.distill.writers import EngineWriter, Request, Sampling
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.models.record import BaseMarks, marks_of
from marslm.rows_file import append_row, read_rows


@dataclass(frozen=True)
class AnswerProgress:
    """How far the answering has come; tokens and seconds are those of this run alone."""

    done: int
    total: int
    tokens: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """An estimate, None before the first answer."""
        return self.seconds / self.done * (self.total - self.done) if self.done else None


AnswerListener = Callable[[AnswerProgress], None]


@dataclass
class AnswerMeter:
    """Counts answers and tokens as they come and tells a listener."""

    total: int
    listener: AnswerListener
    done: int = 0
    tokens: int = 0
    start: float = field(default_factory=time.monotonic)

    def heard(self, tokens: int) -> None:
        """Count tokens just written."""
        self.tokens += tokens
        self._tell()

    def finished(self) -> None:
        """Count an answer."""
        self.done += 1
        self._tell()

    def _tell(self) -> None:
        seconds = time.monotonic() - self.start
        self.listener(AnswerProgress(self.done, self.total, self.tokens, seconds))


def answer_all(
    model: MarsModel,
    dialogues: Sequence[Dialogue],
    cache_file: Path,
    *,
    max_length: int,
    max_new_tokens: int = 256,
    slots: int = 16,
    listener: AnswerListener = lambda progress: None,
) -> list[Example]:
    """Answer each dialogue's prompt greedily; return the examples in the dialogues' order.

    Prompts without room for an answer in `max_length` tokens are left out. An answer that hits
    `max_new_tokens` is kept: it only has no end to learn. Answers in `cache_file` are reused.

    Raises InputError if no prompt has room.
    """
    prompts = {
        dialogue.source: encode_prompt(model.tokenizer, dialogue.prompt, tools=dialogue.tools)
        for dialogue in dialogues
    }
    short = {s: ids for s, ids in prompts.items() if len(ids) + max_new_tokens <= max_length}
    if not short:
        raise InputError(
            f"no prompt leaves room for {max_new_tokens} new tokens within {max_length}: raise "
            "the length limit"
        )
    answers = {row["key"]: row["answer"] for row in read_rows(cache_file, "key", "answer")}
    marks = marks_of(model.network, model.tokenizer)
    # An answer is reused only for the same prompt, model and length limit.
    keys = {source: _key(ids, marks, max_new_tokens) for source, ids in short.items()}
    missing = {keys[source]: ids for source, ids in short.items() if keys[source] not in answers}
    meter = AnswerMeter(len(missing), listener)
    requests = [Request(key, ids) for key, ids in missing.items()]
    writer = EngineWriter(model, slots=slots, max_length=max_length)
    for request, written in writer.write(requests, Sampling(max_new_tokens), meter.heard):
        answers[request.key] = written.ids
        append_row(cache_file, {"key": request.key, "answer": written.ids})
        meter.finished()
    return [
        example_from_answer(ids, answers[keys[source]], source) for source, ids in short.items()
    ]


def _key(prompt: Sequence[int], marks: BaseMarks, max_new_tokens: int) -> str:
    return hashlib.sha256(repr((list(prompt), marks, max_new_tokens)).encode()).hexdigest()[:16]
