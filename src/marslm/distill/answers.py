"""The model's own answers to given prompts, as training examples.

A model that will be asked to reproduce its own text learns most from that text. Answers are
written to a file as they finish, so an interrupted run goes on where it stopped. Knows nothing
about training.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marslm.data.dialogues import Dialogue
from marslm.data.encode import Example, encode_prompt, example_from_answer
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
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
    missing = [ids for ids in short.values() if _key(ids) not in answers]
    if missing:
        engine = Engine(model, slots=min(slots, len(missing)), max_length=max_length)
        params = SamplingParams(max_new_tokens=max_new_tokens, strategy="ar")
        for prompt, answer in _answer(engine, missing, params, listener):
            answers[_key(prompt)] = answer
            _append(cache_file, prompt, answer)
    return [example_from_answer(ids, answers[_key(ids)], source) for source, ids in short.items()]


def _answer(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    listener: Callable[[AnswerProgress], None],
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield (prompt, answer) as they finish."""
    requests = [engine.add(prompt, params) for prompt in prompts]
    done = tokens = 0
    start = time.monotonic()
    while engine.busy:
        for event in engine.step():
            tokens += len(event.tokens)
            if event.sequence.finished:
                done += 1
                prompt = event.sequence.tokens[: event.sequence.prompt_length]
                yield prompt, event.sequence.transcript.ids
        listener(AnswerProgress(done, len(requests), tokens, time.monotonic() - start))


def _key(prompt: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, prompt)).encode()).hexdigest()[:16]


def _append(path: Path, prompt: Sequence[int], answer: Sequence[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": _key(prompt), "answer": list(answer)}) + "\n")


def _read_cache(path: Path) -> dict[str, list[int]]:
    """Return answers by prompt key; a last line cut off by a kill is dropped from the file."""
    if not path.exists():
        return {}
    answers = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for line in lines[:-1]:
        row = json.loads(line)
        answers[row["prompt"]] = row["answer"]
    if lines[-1]:
        path.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
    return answers
