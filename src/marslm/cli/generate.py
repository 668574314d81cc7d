"""`marslm generate`: answers as they come, each accepted run in its own colour.

Knows nothing about how answers are decoded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from marslm.cli import options

if TYPE_CHECKING:
    from marslm.engine.api import Answer

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
    from marslm.data.dialogues import Message, read_dialogues
    from marslm.engine.api import encode, room_for, run_all
    from marslm.engine.engine import Engine
    from marslm.errors import InputError
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
    chats: list[tuple[Message, ...]] = [(Message("user", text),) for text in prompts or []]
    if prompts_file is not None:
        rows = read_dialogues(prompts_file, rows=limit, need_answers=False)
        chats += [dialogue.prompt for dialogue in rows]
    if not chats:
        raise InputError("give a prompt, or a file of prompts with --prompts")
    loaded = options.load_model(model, adapter)
    encoded = [encode(loaded, chat) for chat in chats]
    engine = Engine(loaded, slots=1, max_length=room_for(loaded, max(map(len, encoded)), params))
    found = []
    for chat, ids in zip(chats, encoded, strict=True):
        if len(chats) > 1:
            console.print(f"[dim]> {chat[-1].content}[/dim]")
        start = time.perf_counter()
        answer = run_all(engine, [ids], params, RunPainter().print)[0]
        seconds = time.perf_counter() - start
        console.print(f"\n[dim]{figures(len(answer.ids), len(answer.runs), seconds)}[/dim]\n")
        found.append((chat[-1].content, answer, seconds))
    if json is not None:
        write_report(json, _rows(found, strategy, tau, adapter))


def _rows(
    found: list[tuple[str, Answer, float]], strategy: str, tau: float, adapter: str | None
) -> list[dict[str, str | int | float | bool | None]]:
    """Return the row over all answers, then one row an answer."""

    def row(parts: list[tuple[str, Answer, float]]) -> dict[str, str | int | float | bool | None]:
        tokens = sum(len(answer.ids) for _, answer, _ in parts)
        forwards = sum(len(answer.runs) for _, answer, _ in parts)
        return {
            "strategy": strategy,
            "tau": tau if strategy == "mars" else None,
            "adapter": adapter,
            "tokens": tokens,
            "forwards": forwards,
            "tokens_per_forward": tokens / max(1, forwards),
            "seconds": sum(seconds for _, _, seconds in parts),
        }

    each = [
        {**row([part]), "prompt": part[0], "text": part[1].text, "finish": part[1].finish_reason}
        for part in found
    ]
    return [row(found), *each]
