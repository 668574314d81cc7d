"""`marslm generate`: answers as they come, each accepted run in its own colour.

Knows nothing about how answers are decoded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from marslm.cli import options
from marslm.cli.decoding import Decoding
from marslm.cli.groups import with_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from marslm.data.dialogues import Dialogue
    from marslm.engine.api import Answer
    from marslm.engine.engine import Engine, StepEvent
    from marslm.models.loading import MarsModel
    from marslm.report import Row
    from marslm.runtime.params import SamplingParams

EXAMPLES = """
[b]Examples[/b]

marslm generate "What is the capital of France?"

marslm generate --strategy mars --tau 0.7 "Write a haiku about rain."

marslm generate --adapter runs/gsm8k --prompts questions.jsonl --limit 50 --json answers.json

marslm generate --regex "(yes|no)" "Is the sky blue?"
"""


@with_groups()
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts, one answer each.")] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="Chat, prompt or question rows; .gz too."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Take the first rows of the file only.")] = None,
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    strategy: options.Strategy = "lossless",
    decoding: Decoding = Decoding(),  # noqa: B008 - only its fields' defaults are used
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="List each token's log-probability and the N likeliest at its place."
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Answer prompts, several tokens per forward."""
    from marslm.engine.api import encode, room_for
    from marslm.engine.engine import Engine
    from marslm.models.loading import load
    from marslm.report import write_report

    params = decoding.params(strategy=strategy, logprobs=logprobs)
    chats = _read_chats(prompts or [], prompts_file, limit)
    adapter = options.find_adapter(model, adapter)
    loaded = load(model, adapter=adapter, quantize=quantize)
    encoded = [encode(loaded, chat.prompt) for chat in chats]
    engine = Engine(
        loaded,
        slots=1,
        max_length=room_for(loaded, max(map(len, encoded)), params),
        draft=decoding.load_draft(quantize),
    )
    for chat, ids in zip(chats, encoded, strict=True):
        engine.check_prompt(ids, chat.source)  # all of them, before any is answered
    found = [
        _answer(engine, chat.prompt[-1].content, ids, params, show_prompt=len(chats) > 1)
        for chat, ids in zip(chats, encoded, strict=True)
    ]
    options.warn_if_untrained(loaded, strategy)
    if json is not None:
        settings = {**_settings(engine, params), "model": model, "adapter": adapter}
        write_report(json, [*_rows(found, settings), *_token_rows(loaded, found)])


def _read_chats(prompts: list[str], file: str | None, limit: int | None) -> list[Dialogue]:
    """Return what is to be answered: prompts from the command line, then a file's."""
    from marslm.data.dialogues import Dialogue, Message, read_dialogues
    from marslm.errors import InputError

    chats = [Dialogue((Message("user", text),), "the prompt") for text in prompts]
    if file is not None:
        chats += read_dialogues(file, rows=limit, need_answers=False)
    if not chats:
        raise InputError("give a prompt, or a file of prompts with --prompts")
    return chats


def _answer(
    engine: Engine, prompt: str, ids: list[int], params: SamplingParams, *, show_prompt: bool
) -> _Found:
    """Answer one prompt, showing it as it comes."""
    from marslm.cli.render import RunPainter, console, figures, logprobs_table
    from marslm.engine.api import run_all

    if show_prompt:
        console.print(f"> {prompt}", style="dim", markup=False)
    clock = _Clock(RunPainter().print)
    answer = run_all(engine, [ids], params, clock)[0]
    line = figures(len(answer.ids), len(answer.runs), clock.tokens_per_second)
    console.print(f"\n[dim]{line}[/dim]\n")
    if answer.logprobs:
        console.print(logprobs_table(engine.model.tokenizer, answer.logprobs))
    return _Found(prompt, answer, clock.tokens, clock.seconds)


def _settings(engine: Engine, params: SamplingParams) -> dict[str, str | int | float | bool | None]:
    """Return what a report says about how its answers were decoded."""
    from marslm.engine.engine import block_of

    return {
        "strategy": params.strategy,
        "tau": params.shown_tau if params.strategy == "mars" else None,
        "block": 1 if params.strategy == "ar" else block_of(engine.model, params),
        "temperature": params.temperature,
        "quantize": engine.model.quantize,
    }


class _Clock:
    """Times decoding alone: from an answer's first step on, which has read the prompt."""

    def __init__(self, show: Callable[[StepEvent], None]) -> None:
        self._show = show
        self._start: float | None = None
        self.tokens = 0
        self.seconds = 0.0

    def __call__(self, event: StepEvent) -> None:
        now = time.perf_counter()
        if self._start is None:
            self._start = now
        else:
            self.tokens += len(event.tokens)
            self.seconds = now - self._start
        self._show(event)

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None


class _Found(NamedTuple):
    """One answer; tokens and seconds are those of decoding alone."""

    prompt: str
    answer: Answer
    tokens: int
    seconds: float


def _rows(found: list[_Found], settings: Row) -> list[Row]:
    """Return the row over all answers, then one row an answer."""
    each = [
        {
            **_row([part], settings),
            "prompt": part.prompt,
            "text": part.answer.text,
            "finish": part.answer.finish_reason,
        }
        for part in found
    ]
    return [_row(found, settings), *each]


def _token_rows(model: MarsModel, found: list[_Found]) -> list[Row]:
    """Return a row for each token whose log-probability was asked for."""
    return [
        {
            "kind": "token",
            "prompt": part.prompt,
            "position": position,
            "token_id": each.token,
            "token": str(model.tokenizer.decode([each.token])),
            "logprob": each.logprob,
            "top_ids": " ".join(str(token) for token, _ in each.top),
            "top_logprobs": " ".join(f"{logprob:.6g}" for _, logprob in each.top),
        }
        for part in found
        for position, each in enumerate(part.answer.logprobs)
    ]


def _row(parts: list[_Found], settings: Row) -> Row:
    tokens = sum(len(part.answer.ids) for part in parts)
    forwards = sum(len(part.answer.runs) for part in parts)
    seconds = sum(part.seconds for part in parts)
    return {
        **settings,
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": tokens / max(1, forwards),
        "tokens_per_second": sum(part.tokens for part in parts) / seconds if seconds else None,
    }
