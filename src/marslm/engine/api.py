"""Offline generation: many prompts in, answers out, like `generate` elsewhere.

Knows nothing about servers or files.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from marslm.data.dialogues import Message
from marslm.data.encode import encode_prompt
from marslm.engine.engine import Engine, StepEvent, block_of
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.logprobs import TokenLogprobs
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import FinishReason

Prompt: TypeAlias = "str | ListOf[Message] | list[int]"
"""A user's text, chat messages, or token ids that are taken as they are."""


@dataclass(frozen=True)
class Answer:
    """One finished answer.

    ids: committed tokens, the end token included. runs: tokens of each forward; their sum is the
    number of tokens, their count the number of forwards. decode_rows: input rows of the forwards
    after the prompt's. logprobs: one entry a token if they were asked for.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    runs: list[int]
    decode_rows: int
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens per forward, the prompt's forward included."""
        return len(self.ids) / max(1, len(self.runs))


def encode(model: MarsModel, prompt: Prompt) -> list[int]:
    """Return the token ids of a prompt; text goes through the chat template as a user's turn."""
    if isinstance(prompt, str):
        prompt = [Message("user", prompt)]
    if prompt and isinstance(prompt[0], Message):
        return encode_prompt(model.tokenizer, [m for m in prompt if isinstance(m, Message)])
    return [int(token) for token in prompt if not isinstance(token, Message)]


def generate(
    model: MarsModel,
    prompts: ListOf[Prompt],
    params: SamplingParams | None = None,
    *,
    slots: int = 8,
    on_step: Callable[[StepEvent], None] | None = None,
    **overrides: object,
) -> list[Answer]:
    """Answer all prompts, up to `slots` at a time; the answers are in the prompts' order.

    overrides: fields of SamplingParams, so that `generate(model, ["Hi"], tau=0.8)` works. on_step
    hears every step's tokens as they come.

    Raises InputError for a prompt that is empty or too long and for bad parameters.
    """
    if isinstance(prompts, str):
        raise InputError("prompts is one text: give a list of prompts, such as [text]")
    params = replace(params or SamplingParams(), **overrides)  # type: ignore[arg-type]
    encoded = [encode(model, prompt) for prompt in prompts]
    longest = max(map(len, encoded), default=0)
    engine = Engine(
        model,
        slots=max(1, min(slots, len(prompts))),
        max_length=room_for(model, longest, params),
    )
    return run_all(engine, encoded, params, on_step)


def room_for(model: MarsModel, prompt_length: int, params: SamplingParams) -> int:
    """Return the cache length for a prompt of `prompt_length` tokens, its answer and windows."""
    window = 0 if params.block == "full" else 2 * block_of(model, params)
    return prompt_length + params.max_new_tokens + window


def run_all(
    engine: Engine,
    prompts: ListOf[list[int]],
    params: SamplingParams,
    on_step: Callable[[StepEvent], None] | None = None,
) -> list[Answer]:
    """Answer all encoded prompts with an engine that is at hand."""
    sequences = [engine.add(prompt, params) for prompt in prompts]
    for event in engine.run():
        if on_step is not None:
            on_step(event)
    return [answer_of(sequence) for sequence in sequences]


def answer_of(sequence: Sequence) -> Answer:
    """Return a finished request's answer."""
    transcript = sequence.transcript
    assert transcript.finish_reason is not None
    return Answer(
        prompt_ids=sequence.tokens[: sequence.prompt_length],
        ids=transcript.ids,
        text=transcript.text,
        runs=sequence.runs,
        decode_rows=sequence.decode_rows,
        finish_reason=transcript.finish_reason,
        logprobs=transcript.logprobs,
    )
