"""Answers many prompts with an engine and keeps what each one cost.

Knows nothing about benchmarks, files or scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from marslm.engine.api import Answer, answer_of, room_for
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams


@dataclass(frozen=True)
class Generation:
    """One finished answer.

    tokens: committed ones, the end token included. forwards: those that brought any. seconds: its
    share of the steps it took part in, so that the shares of a batch add up to the batch's time.
    finish_reason: "length" if the answer was cut by its length cap. prompt_cut: tokens that the
    prompt lost on its left to fit the model's context.
    """

    text: str
    tokens: int
    forwards: int
    seconds: float
    finish_reason: str
    prompt_cut: int = 0


class Costs(Protocol):
    """What an answer cost, as a Generation has it."""

    @property
    def tokens(self) -> int: ...  # noqa: D102 - see Generation
    @property
    def forwards(self) -> int: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def finish_reason(self) -> str: ...  # noqa: D102
    @property
    def prompt_cut(self) -> int: ...  # noqa: D102


def count(answers: Sequence[Costs]) -> dict[str, float | int]:
    """Return what `answers`, at least one, cost together.

    truncated: the share that the length cap ended. prompts_cut: how many prompts lost their left
    end. seconds are those of decoding, whatever else was waited for.
    """
    tokens, forwards = sum(a.tokens for a in answers), sum(a.forwards for a in answers)
    return {
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": tokens / max(1, forwards),
        "truncated": sum(a.finish_reason == "length" for a in answers) / len(answers),
        "prompts_cut": sum(a.prompt_cut > 0 for a in answers),
        "seconds": sum(a.seconds for a in answers),
    }


@dataclass(frozen=True)
class Request:
    """A prompt's token ids, and how to answer it."""

    prompt: list[int]
    params: SamplingParams


def fit(model: MarsModel, prompt: list[int], max_new_tokens: int) -> tuple[list[int], int]:
    """Return the end of a prompt that leaves room for its answer, and how many tokens were cut."""
    context = model.context_length
    room = max(context - max_new_tokens, context // 2)
    return prompt[-room:], max(0, len(prompt) - room)


def answer_all(
    model: MarsModel,
    requests: Sequence[Request],
    *,
    slots: int,
    on_answer: Callable[[int, Generation], None],
) -> None:
    """Answer all requests, `slots` at a time; `on_answer` hears of each as it ends, by its place.

    A prompt that is too long for the model loses its left end.
    """
    if not requests:
        return
    fitted = [fit(model, each.prompt, each.params.max_new_tokens) for each in requests]
    lengths = [
        room_for(model, len(prompt), each.params)
        for (prompt, _), each in zip(fitted, requests, strict=True)
    ]
    engine = Engine(model, slots=min(slots, len(requests)), max_length=max(lengths))
    unfinished = {
        place: engine.add(prompt, requests[place].params)
        for place, (prompt, _) in enumerate(fitted)
    }
    seconds = [0.0] * len(requests)
    while engine.busy:
        start = time.perf_counter()
        engine.step()
        elapsed = time.perf_counter() - start
        stepped = [place for place, sequence in unfinished.items() if sequence.started]
        for place in stepped:
            seconds[place] += elapsed / len(stepped)
        for place in stepped:
            if unfinished[place].finished:
                answer = answer_of(unfinished.pop(place))
                on_answer(place, _generation(answer, seconds[place], fitted[place][1]))


def _generation(answer: Answer, seconds: float, prompt_cut: int) -> Generation:
    return Generation(
        text=answer.text,
        tokens=len(answer.ids),
        forwards=len(answer.runs),
        seconds=seconds,
        finish_reason=answer.finish_reason,
        prompt_cut=prompt_cut,
    )
