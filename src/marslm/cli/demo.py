"""`marslm demo`: watch language models write several tokens per forward pass.

Knows nothing about how that is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marslm.cli import options

if TYPE_CHECKING:
    from marslm.models.quantize import Quantize
    from marslm.report import Row
    from marslm.tuning.demo import DemoResult

EXAMPLES = """
[b]Examples[/b]

marslm demo

marslm demo --model tiny --json demo.json
"""

_FOLDER = Path("runs") / "demo"
_COLUMNS = (
    "strategy",
    "tau",
    "accuracy",
    "tokens",
    "forwards",
    "tokens_per_forward",
    "tokens_per_second",
    "speed_ratio",
    "identical_to_ar",
    "agreement",
)


def demo(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="tiny (trained here in two minutes), smollm2 (with an adapter) or all.",
        ),
    ] = "all",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    json: options.Json = None,
) -> None:
    """Train a tiny model from scratch, then decode it, and smollm2, in every way."""
    from marslm.errors import InputError
    from marslm.report import write_report

    if model not in ("tiny", "smollm2", "all"):
        raise InputError(f"the demo knows tiny, smollm2 and all, not {model!r}")
    rows: list[Row] = []
    if model in ("tiny", "all"):
        rows += _tiny()
    if model in ("smollm2", "all"):
        rows += _smollm2(adapter, quantize, needed=model == "smollm2")
    if json is not None:
        write_report(json, rows)


def _tiny() -> list[Row]:
    from marslm.cli.progress import bar
    from marslm.cli.render import console
    from marslm.cli.tune_view import TuneView
    from marslm.tuning.demo import decode_tiny, train_tiny

    console.rule("tiny: sums, learned from scratch")
    with TuneView() as view:
        loaded = train_tiny(_FOLDER / "tiny", view.show_progress)
    with bar("held-out sums", 100) as done:
        result = decode_tiny(loaded, done)
    rows = _show(result, examples=2)
    console.print(f'try: marslm generate --model {_FOLDER / "tiny"} "47 + 85 = ?"\n')
    return rows


def _smollm2(adapter: str | None, quantize: Quantize, *, needed: bool) -> list[Row]:
    from marslm.cli.progress import bar
    from marslm.cli.render import console
    from marslm.errors import InputError
    from marslm.models.loading import load
    from marslm.tuning.demo import CHAT_PROMPTS, decode_chat

    adapter = options.find_adapter("smollm2", adapter)
    try:
        if adapter is None:
            raise InputError("no adapter ships for smollm2: name one with --adapter DIR")
        loaded = load("smollm2", adapter=adapter, quantize=quantize)
    except InputError as error:
        if needed:
            raise
        console.print(f"smollm2 is left out: {error}", markup=False)
        return []
    console.rule("smollm2: a real chat model")
    with bar("chat prompts", len(CHAT_PROMPTS)) as done:
        result = decode_chat(loaded, done)
    return [{**row, "adapter": adapter, "quantize": quantize} for row in _show(result, examples=2)]


def _show(result: DemoResult, examples: int) -> list[Row]:
    """Print coloured answers and the table; return its rows."""
    from marslm.cli.render import console, paint_answer, print_rows

    for index in range(examples):
        console.print(f"[bold]> {result.prompts[index]}[/bold]")
        for name, answers in result.answers.items():
            console.print(f"[dim]{name:>9}[/dim] ", end="")
            console.print(paint_answer(result.tokenizer, answers[index]))
    plain = result.rows[0]["tokens_per_second"]
    rows: list[Row] = [
        {**row, "speed_ratio": _ratio(row["tokens_per_second"], plain)} for row in result.rows
    ]
    print_rows(rows, _COLUMNS)
    console.print("[dim]coloured: written together in one forward pass[/dim]\n")
    return rows


def _ratio(value: object, plain: object) -> float | None:
    return value / plain if isinstance(value, float) and isinstance(plain, float) else None
