"""`marslm chat`: a conversation in the terminal.

Knows nothing about how answers are decoded.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from marslm.cli import options
from marslm.cli.decoding import Decoding
from marslm.cli.groups import with_groups

if TYPE_CHECKING:
    from marslm.data.dialogues import Message
    from marslm.engine.engine import Engine
    from marslm.runtime.params import SamplingParams

EXAMPLES = """
[b]Examples[/b]

marslm chat

marslm chat --model Qwen/Qwen2.5-0.5B-Instruct --adapter runs/qwen --system "Answer briefly."

In the chat: /speed 0.7 sets tau and switches to mars, /lossless and /ar switch back, /new starts
anew, /quit or Ctrl-D ends.
"""

_HELP = "/speed TAU, /lossless, /ar, /new, /quit"


@with_groups(max_new_tokens=512)
def chat(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    strategy: options.Strategy = "lossless",
    decoding: Decoding = Decoding(),  # noqa: B008 - only its fields' defaults are used
) -> None:
    """Talk with a model; each accepted run has its own colour."""
    from marslm.cli.render import console
    from marslm.engine.engine import Engine
    from marslm.models.loading import load

    params = decoding.params()
    loaded = load(model, adapter=options.find_adapter(model, adapter), quantize=quantize)
    length = min(loaded.context_length, 4096)
    draft = decoding.load_draft(quantize)
    engine = Engine(loaded, slots=1, max_length=length, draft=draft)
    params = _set_knob(engine, strategy, params)
    options.warn_if_untrained(loaded, strategy)
    console.print(f"[dim]{loaded.name}, {strategy}. {_HELP}[/dim]")
    _converse(engine, system, params)


def _set_knob(engine: Engine, strategy: str, params: SamplingParams) -> SamplingParams:
    """Give strategy and tau to the knob, which the chat can turn, instead of to the requests."""
    from marslm.errors import InputError

    if not isinstance(params.tau, float):
        raise InputError(f"tau is {params.tau}: a chat takes a number, which /speed can change")
    engine.speed.strategy, engine.speed.tau = strategy, params.tau
    return replace(params, tau=None)


def _converse(engine: Engine, system: str | None, params: SamplingParams) -> None:
    """Read lines until the end; keep the conversation."""
    from marslm.cli.render import console
    from marslm.data.dialogues import Message
    from marslm.errors import InputError

    opening = [Message("system", system)] if system else []
    messages = list(opening)
    while True:
        try:
            text = console.input("[bold]> [/bold]").strip()
        except EOFError:
            console.print()
            return
        if text == "/quit":
            return
        try:
            if text == "/new":
                messages = list(opening)
            elif text.startswith("/"):
                _turn_knob(engine, text)
            elif text:
                messages = _answer(engine, [*messages, Message("user", text)], params)
        except InputError as error:
            console.print(str(error), style="red", markup=False)


def _turn_knob(engine: Engine, command: str) -> None:
    from marslm.cli.render import console
    from marslm.errors import InputError

    name, _, value = command.removeprefix("/").partition(" ")
    if name == "speed":
        try:
            engine.speed.tau = float(value)
        except ValueError as error:
            raise InputError(f"/speed takes a number above 0 and at most 1 ({error})") from error
        name = "mars"
    elif name not in ("ar", "lossless"):
        raise InputError(f"unknown command /{name}: {_HELP}")
    engine.speed.strategy = name
    console.print(f"[dim]{name}{f', tau {engine.speed.tau}' if name == 'mars' else ''}[/dim]")


def _answer(engine: Engine, messages: list[Message], params: SamplingParams) -> list[Message]:
    """Stream one answer; return the conversation with it. Ctrl-C ends the answer, not the chat."""
    from marslm.cli.render import RunPainter, console, figures
    from marslm.data.dialogues import Message
    from marslm.engine.api import encode

    painter, start = RunPainter(), time.perf_counter()
    request = engine.add(encode(engine.model, messages), params)
    try:
        for event in engine.run():
            painter.print(event)
    except KeyboardInterrupt:
        engine.abort(request)
    transcript = request.transcript
    speed = len(transcript.ids) / (time.perf_counter() - start)
    console.print(f"\n[dim]{figures(len(transcript.ids), len(request.runs), speed)}[/dim]\n")
    return [*messages, Message("assistant", transcript.text or " ")]
