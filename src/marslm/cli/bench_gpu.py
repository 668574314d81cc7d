"""`marslm bench gpu`: the engine on a GPU, within a few minutes.

Knows nothing about how it is measured.
"""

from __future__ import annotations

from typing import Annotated

import typer

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

marslm bench gpu --json gpu.json

marslm bench gpu --device cpu --models tiny --batches 1,4 --context 32 -n 24
"""

_CHECKS = ("check", "model", "identical_to_ar", "ties", "agreement", "graphs")
_COLUMNS = (
    "model",
    "batch",
    "strategy",
    "tokens_per_second",
    "step_seconds",
    "tokens_per_step",
    "rows_per_step",
    "fraction_of_roofline",
    "speed_over_transformers",
    "speed_over_ar",
    "graphs",
    "skipped",
)


def gpu(
    models: Annotated[
        str, typer.Option(help="Shapes, comma-separated: 0.5b and 7b (Qwen2.5's), tiny.")
    ] = "0.5b,7b",
    batches: Annotated[
        str, typer.Option(help="Requests at once, comma-separated.")
    ] = "1,4,8,16,32",
    acceptance: Annotated[
        float, typer.Option(help="The chance of a candidate, if those before it were kept.")
    ] = 0.5,
    context: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 256,
    max_new_tokens: options.MaxNewTokens = 96,
    budget: Annotated[
        float, typer.Option(help="Seconds; what there is no time for is skipped.")
    ] = 450,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    json: options.Json = None,
) -> None:
    """Check the engine on a GPU and measure ar, mars and lossless with random weights."""
    import torch

    from marslm.bench.gpu import GpuBench, Sizes
    from marslm.bench.random_model import check_shape
    from marslm.cli.render import console, print_rows
    from marslm.errors import InputError
    from marslm.report import Row, write_report

    if not 0 <= acceptance <= 1:
        raise InputError(f"acceptance is {acceptance}: give a chance from 0 to 1")
    for name, value, least in (("context", context, 1), ("max-new-tokens", max_new_tokens, 2)):
        if value < least:
            raise InputError(f"{name} is {value}: give at least {least}")
    shapes = [name.strip() for name in models.split(",")]
    for shape in shapes:
        check_shape(shape)
    sizes = Sizes(shapes, options.counts("--batches", batches), acceptance, context, max_new_tokens)
    if device not in ("cuda", "cpu"):
        raise InputError(f"device is {device!r}: give cuda or cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no GPU here: give --device cpu, with --models tiny")
    rows: list[Row] = []
    with console.status("measuring the machine") as status:
        for row in GpuBench(torch.device(device), sizes, budget=budget).run(status.update):
            rows.append(row)
            if json is not None:
                write_report(json, rows)  # after every row: the machine may be gone at any time
    print_rows([row for row in rows if "check" in row], _CHECKS)
    print_rows([row for row in rows if "check" not in row], _COLUMNS)
