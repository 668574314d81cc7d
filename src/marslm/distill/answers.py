"""The model's own answers to given prompts, as training examples.

A model that will be asked to reproduce its own text learns most from that text. Answers are
written to a file as they finish, so an interrupted run goes on where it stopped. Knows nothing
about training.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marslm import files
from marslm.data.dialogues import Dialogue
from marslm.data.encode import Example, encode_prompt, example_from_answer
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.models.record import BaseMarks, marks_of
from marslm.runtime.params import SamplingParams


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


def answer_all(
    model: MarsModel,
    dialogues: Sequence[Dialogue],
    cache_file: Path,
    *,
    max_length: int,
    max_new_tokens: int = 256,
    slots: int = 16,
    listener: Callable[[AnswerProgress], None] = lambda progress: None,
) -> list[Example]:
    """Answer each dialogue's prompt greedily; return the examples in the dialogues' order.

    Prompts without room for an answer in `max_length` tokens are left out. An answer that hits
    `max_new_tokens` is kept: it only has no end to learn. Answers in `cache_file` are reused.

    Raises InputError if no prompt has room.
    """
    prompts = {
        dialogue.source: encode_prompt(model.tokenizer, dialogue.prompt) for dialogue in dialogues
    }
    short = {s: ids for s, ids in prompts.items() if len(ids) + max_new_tokens <= max_length}
    if not short:
        raise InputError(
            f"no prompt leaves room for {max_new_tokens} new tokens within {max_length}: raise "
            "the length limit"
        )
    answers = _read_cache(cache_file)
    marks = marks_of(model.network, model.tokenizer)
    # An answer is reused only for the same prompt, model and length limit.
    keys = {source: _key(ids, marks, max_new_tokens) for source, ids in short.items()}
    missing = {keys[source]: ids for source, ids in short.items() if keys[source] not in answers}
    if missing:
        engine = Engine(model, slots=min(slots, len(missing)), max_length=max_length)
        params = SamplingParams(max_new_tokens=max_new_tokens, strategy="ar")
        for key, answer in _answer(engine, missing, params, listener):
            answers[key] = answer
            _append(cache_file, key, answer)
    return [
        example_from_answer(ids, answers[keys[source]], source) for source, ids in short.items()
    ]


def _answer(
    engine: Engine,
    prompts: Mapping[str, list[int]],
    params: SamplingParams,
    listener: Callable[[AnswerProgress], None],
) -> Iterator[tuple[str, list[int]]]:
    """Yield (key, answer) as they finish."""
    requests = {engine.add(prompt, params).number: key for key, prompt in prompts.items()}
    done = tokens = 0
    start = time.monotonic()
    while engine.busy:
        for event in engine.step():
            tokens += len(event.tokens)
            if event.sequence.finished:
                done += 1
                yield requests[event.sequence.number], event.sequence.transcript.ids
        listener(AnswerProgress(done, len(requests), tokens, time.monotonic() - start))


def _key(prompt: Sequence[int], marks: BaseMarks, max_new_tokens: int) -> str:
    return hashlib.sha256(repr((list(prompt), marks, max_new_tokens)).encode()).hexdigest()[:16]


def _append(path: Path, key: str, answer: Sequence[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "answer": list(answer)}) + "\n")


def _read_cache(path: Path) -> dict[str, list[int]]:
    """Return answers by prompt key; a last line cut off by a kill is dropped from the file."""
    if not path.exists():
        return {}
    answers = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            answers[row["key"]] = row["answer"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number} is damaged: delete that line") from error
    if lines[-1]:
        files.write_text(path, "\n".join([*lines[:-1], ""]))
    return answers
