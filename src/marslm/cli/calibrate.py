"""`marslm calibrate`: thresholds for a wanted rate of agreement with one-token decoding.

Knows nothing about how they are found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

marslm calibrate --adapter runs/mine --data held_out.jsonl --plot reliability.png

marslm generate --adapter runs/mine --strategy mars --tau auto:0.02 "Write a haiku about rain."
"""

_COLUMNS = ("rate", "mask", "tau", "candidates", "accepted", "wrong")


def calibrate(
    data: Annotated[
        str, typer.Option(help="Held-out prompts: chat, prompt or question rows; .gz too.")
    ],
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    prompts: Annotated[int, typer.Option(help="Rows to take; half fit, half check.")] = 64,
    max_new_tokens: options.MaxNewTokens = 96,
    rates: Annotated[
        str, typer.Option(help="Comma-separated shares of tokens that may differ from ar.")
    ] = "0.01,0.02,0.05",
    confidence: Annotated[
        str, typer.Option(help="What tau is compared with: probability, margin or entropy.")
    ] = "probability",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw how confidence and truth agree.")
    ] = None,
    json: options.Json = None,
) -> None:
    """Measure tau for each mask on held-out prompts; write it beside the weights."""
    from marslm.cli.progress import bar
    from marslm.cli.render import console, print_rows
    from marslm.data.dialogues import read_dialogues
    from marslm.engine.api import encode
    from marslm.errors import InputError
    from marslm.files import is_writable_place
    from marslm.models.calibration import FILE_NAME
    from marslm.models.loading import load
    from marslm.report import write_report
    from marslm.tuning.calibrate import calibrate as run
    from marslm.tuning.calibrate import reliability

    wanted = _read_rates(rates)
    adapter = options.find_adapter(model, adapter)
    folder = Path(adapter or model).expanduser()
    if not folder.is_dir():
        raise InputError(f"there is no folder to write beside {model!r}: name an --adapter")
    if not is_writable_place(folder / FILE_NAME):
        raise InputError(f"{folder} cannot be written to: copy it, and name the copy as --adapter")
    loaded = load(model, adapter=adapter, quantize=quantize)
    chats = read_dialogues(data, rows=prompts, need_answers=False)
    with bar("calibrating", 2 * len(chats)) as done:
        calibration, rows, probes = run(
            loaded,
            [encode(loaded, chat.prompt) for chat in chats],
            confidence=confidence,
            max_new_tokens=max_new_tokens,
            rates=wanted,
            on_part=done,
        )
    calibration.save(folder)
    print_rows(rows, _COLUMNS)
    console.print(f"written beside the weights in {folder}; use it with --tau auto:{wanted[0]:g}")
    if plot is not None:
        from marslm.plots.reliability import plot_reliability

        plot_reliability(reliability(probes), plot, loaded.name)
    if json is not None:
        given = {"model": model, "adapter": adapter, "quantize": quantize}
        write_report(json, [{**row, **given} for row in rows])


def _read_rates(text: str) -> list[float]:
    from marslm.errors import InputError

    try:
        return [float(each) for each in text.split(",")]
    except ValueError as error:
        raise InputError(f"--rates {text}: give numbers, as 0.01,0.02") from error
