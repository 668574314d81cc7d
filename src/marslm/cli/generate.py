"""`marslm generate`: answers as they come, each accepted run in its own colour.

Knows nothing about how answers are decoded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from marslm.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from marslm.engine.api import Answer
    from marslm.engine.engine import StepEvent
    from marslm.report import Row

EXAMPLES = """
[b]Examples[/b]

marslm generate "What is the capital of France?"

marslm generate --strategy mars --tau 0.7 "Write a haiku about rain."

marslm generate --adapter runs/gsm8k --prompts questions.jsonl --limit 50 --json answers.json
"""


def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts, one answer each.")] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="Chat, prompt or question rows; .gz too."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Take the first rows of the file only.")] = None,
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    strategy: options.Strategy = "lossless",
    tau: options.Tau = 0.9,
    block: options.Block = None,
    confidence: options.Confidence = "probability",
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    max_new_tokens: options.MaxNewTokens = 256,
    json: options.Json = None,
) -> None:
    """Answer prompts, several tokens per forward."""
    from marslm.cli.render import RunPainter, console, figures
    from marslm.data.dialogues import Dialogue, Message, read_dialogues
    from marslm.engine.api import encode, room_for, run_all
    from marslm.engine.engine import Engine, trained_block
    from marslm.errors import InputError
    from marslm.models.loading import load
    from marslm.report import write_report
    from marslm.runtime.params import SamplingParams

    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        strategy=strategy,
        tau=tau,
        block=block,
        confidence=confidence,
    )
    chats = [Dialogue((Message("user", text),), "the prompt") for text in prompts or []]
    if prompts_file is not None:
        chats += read_dialogues(prompts_file, rows=limit, need_answers=False)
    if not chats:
        raise InputError("give a prompt, or a file of prompts with --prompts")
    adapter = options.find_adapter(model, adapter)
    loaded = load(model, adapter=adapter)
    encoded = [encode(loaded, chat.prompt) for chat in chats]
    engine = Engine(loaded, slots=1, max_length=room_for(loaded, max(map(len, encoded)), params))
    for chat, ids in zip(chats, encoded, strict=True):
        engine.check_prompt(ids, chat.source)  # all of them, before any is answered
    found = []
    for chat, ids in zip(chats, encoded, strict=True):
        if len(chats) > 1:
            console.print(f"> {chat.prompt[-1].content}", style="dim", markup=False)
        clock = _Clock(RunPainter().print)
        answer = run_all(engine, [ids], params, clock)[0]
        console.print(
            f"\n[dim]{figures(len(answer.ids), len(answer.runs), clock.tokens_per_second)}[/dim]\n"
        )
        found.append(_Found(chat.prompt[-1].content, answer, clock.tokens, clock.seconds))
    options.warn_if_untrained(loaded, strategy)
    if json is not None:
        settings = {
            "strategy": strategy,
            "tau": tau if strategy == "mars" else None,
            "block": 1 if strategy == "ar" else block or trained_block(loaded),
            "temperature": temperature,
            "model": model,
            "adapter": adapter,
        }
        write_report(json, _rows(found, settings))


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
