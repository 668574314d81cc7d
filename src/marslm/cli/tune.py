"""`marslm tune`: train a model, or an adapter for it, to write several tokens per forward.

Knows nothing about how training works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

marslm tune --data chats.jsonl --mode mask-only --minutes 60 --output runs/mine

marslm tune -m Qwen/Qwen2.5-0.5B-Instruct --data owner/set --mode lora --steps 2000 -o runs/qwen

marslm tune --data chats.jsonl --mode mask-only --minutes 60 --output runs/mine --resume
"""


def tune(
    data: Annotated[
        str,
        typer.Option(help="Chat, prompt/response or question/answer rows (.jsonl, .gz), or Hub."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    model: options.Model = "smollm2",
    mode: Annotated[
        str, typer.Option(help="mask-only (base bit-identical), lora (merged at load) or full.")
    ] = "mask-only",
    minutes: Annotated[float | None, typer.Option(help="Length of training, in minutes.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length of training, in steps.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
    from_adapter: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Start from this adapter's weights; mask-only."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Rows of the data to train on.")] = None,
    held_out: Annotated[int, typer.Option(help="Rows after those, to measure on at the end.")] = 16,
    answers: Annotated[
        str | None,
        typer.Option(help="gold (the data's) or self (the model's own; default for mask-only)."),
    ] = None,
    block: Annotated[int | None, typer.Option("--block", "-B", help="Candidates per step.")] = None,
    ar_weight: Annotated[
        float | None, typer.Option(help="w in L = L_mask + w * L_AR; full and lora.")
    ] = None,
    anchors: Annotated[
        int | None, typer.Option(help="Masked blocks sampled per sequence; else fixed blocks.")
    ] = None,
    kl_weight: Annotated[
        float | None, typer.Option(help="Share of KL to the clean stream; mask-only.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the adapter.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--lr", help="Peak learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences per step.")] = None,
    accumulation: Annotated[
        int | None, typer.Option(help="Micro-batches that a step is split into.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest sequence, in tokens.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer of --answers self.")] = 256,
    mask_token_id: Annotated[int | None, typer.Option(help="Row to use as [MASK].")] = None,
    seed: Annotated[int, typer.Option(help="Seed of masks, order and initial weights.")] = 0,
    json: options.Json = None,
) -> None:
    """Train for several tokens per forward."""
    from marslm.cli.tune_view import TuneView
    from marslm.errors import InputError
    from marslm.report import write_report
    from marslm.train.config import TuneConfig, check_meaningful
    from marslm.tuning.tune import TuneJob
    from marslm.tuning.tune import tune as run

    if answers not in (None, "gold", "self"):
        raise InputError(f"answers is {answers!r}: choose gold or self")
    check_meaningful(mode, ar_weight=ar_weight, kl_weight=kl_weight, rank=rank)
    config = TuneConfig.for_mode(
        mode,  # type: ignore[arg-type]  # checked by TuneConfig
        minutes=minutes,
        steps=steps,
        block_size=block,
        ar_weight=ar_weight,
        anchors=anchors,
        kl_weight=kl_weight,
        rank=rank,
        learning_rate=learning_rate,
        batch_size=batch_size,
        accumulation=accumulation,
        max_length=max_length,
        seed=seed,
    )
    job = TuneJob(
        model=model,
        data=data,
        output=output,
        config=config,
        rows=rows,
        held_out=held_out,
        answers=answers,  # type: ignore[arg-type]
        mask_token_id=mask_token_id,
        max_new_tokens=max_new_tokens,
        from_adapter=from_adapter,
        resume=resume,
    )
    with TuneView() as view:
        results = run(job, view)
    if json is not None:
        rows_found = [result.row() for result in results]
        write_report(json, [{**row, "model": model, "adapter": str(output)} for row in rows_found])
