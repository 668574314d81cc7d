"""`marslm tune`: train a model, or an adapter for it, to write several tokens per forward.

Knows nothing about how training works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marslm.cli import options

_LENGTH = "Length"
_DATA = "Data"
_METHOD = "Method"
_ABLATION = "Form of a block (ablations)"

EXAMPLES = """
[b]Examples[/b]

marslm tune --recipe recipes/tiny/mars.yaml

marslm tune --data chats.jsonl --mode mask-only --minutes 60 --output runs/mine

marslm tune -m Qwen/Qwen2.5-0.5B-Instruct --data owner/set --mode lora --steps 2000 -o runs/qwen

marslm tune --data chats.jsonl --mode mask-only --minutes 60 --output runs/mine --resume
"""


def tune(
    recipe: Annotated[
        Path | None,
        typer.Option(help="YAML file of settings; options given here override it.", metavar="FILE"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Rows of chats (.jsonl, .json, .gz, .parquet), a Hub data set, or arithmetic."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="As for `marslm generate`; default smollm2."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="mask-only (base bit-identical; default), lora (merged at load) or full."
        ),
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="mars (default), ar (plain SFT) or block_diffusion.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Length of training, in minutes.", rich_help_panel=_LENGTH)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Length of training, in steps.", rich_help_panel=_LENGTH)
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Length of training, in passes.", rich_help_panel=_LENGTH),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue from the last checkpoint.", rich_help_panel=_LENGTH
        ),
    ] = False,
    from_adapter: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Start from this adapter's weights; mask-only."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of the data to train on.", rich_help_panel=_DATA)
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option(
            help="Rows after those, to measure on at the end; default 16.", rich_help_panel=_DATA
        ),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            help="gold (the data's) or self (the model's own; default for mask-only).",
            rich_help_panel=_DATA,
        ),
    ] = None,
    turns: Annotated[
        str | None,
        typer.Option(
            help="Supervise all assistant turns (default) or the last.", rich_help_panel=_DATA
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Longest sequence, in tokens.", rich_help_panel=_DATA)
    ] = None,
    packing: Annotated[
        bool | None,
        typer.Option(
            "--packing/--no-packing",
            help="Put several examples into one sequence; none sees another.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Longest answer of --answers self.", rich_help_panel=_DATA),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option("--block", "-B", help="Candidates per step.", rich_help_panel=_METHOD),
    ] = None,
    ar_weight: Annotated[
        float | None,
        typer.Option(help="w in L = L_mask + w * L_AR; full and lora.", rich_help_panel=_METHOD),
    ] = None,
    balance_ar: Annotated[
        bool | None,
        typer.Option(
            "--balance-ar/--no-balance-ar",
            help="Multiply w by the running L_mask / L_AR.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    anchors: Annotated[
        int | None,
        typer.Option(
            help="Masked blocks sampled per example; else fixed blocks.", rich_help_panel=_METHOD
        ),
    ] = None,
    kl_weight: Annotated[
        float | None,
        typer.Option(help="Share of KL to the clean stream; mask-only.", rich_help_panel=_METHOD),
    ] = None,
    distance_decay: Annotated[
        float | None,
        typer.Option(help="Weight per mask seen, up to 1.", rich_help_panel=_METHOD),
    ] = None,
    random_window: Annotated[
        bool | None,
        typer.Option(
            "--random-window/--no-random-window",
            help="Draw B anew at each visit.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    curriculum: Annotated[
        float | None,
        typer.Option(help="Share of the run over which B grows from 2.", rich_help_panel=_METHOD),
    ] = None,
    block_start: Annotated[
        str | None, typer.Option(help="clean or previous_mask.", rich_help_panel=_ABLATION)
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="causal or bidirectional in a block.", rich_help_panel=_ABLATION),
    ] = None,
    alignment: Annotated[
        str | None,
        typer.Option(help="A mask predicts the next token or its own.", rich_help_panel=_ABLATION),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="left_to_right or confidence.", rich_help_panel=_ABLATION),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the adapter.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--lr", help="Peak learning rate.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Sequences per step, over all processes.")
    ] = None,
    accumulation: Annotated[
        int | None, typer.Option(help="Micro-batches that a step is split into.")
    ] = None,
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute", help="Activation checkpointing: memory for time."
        ),
    ] = None,
    mask_token_id: Annotated[int | None, typer.Option(help="Row to use as [MASK].")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of masks, order and initial weights.")
    ] = None,
    report_to: Annotated[
        str | None, typer.Option(help="Also tensorboard, wandb or trackio.")
    ] = None,
    json: options.Json = None,
) -> None:
    """Train for several tokens per forward."""
    from marslm.cli.tune_view import TuneView
    from marslm.report import write_report
    from marslm.tuning.recipe import make_job, read_recipe
    from marslm.tuning.tune import tune as run

    given = {
        "model": model,
        "data": data,
        "output": None if output is None else str(output),
        "mode": mode,
        "objective": objective,
        "minutes": minutes,
        "steps": steps,
        "epochs": epochs,
        "from_adapter": None if from_adapter is None else str(from_adapter),
        "rows": rows,
        "held_out": held_out,
        "answers": answers,
        "turns": turns,
        "max_length": max_length,
        "packing": packing,
        "max_new_tokens": max_new_tokens,
        "block_size": block,
        "ar_weight": ar_weight,
        "balance_ar": balance_ar,
        "anchors": anchors,
        "kl_weight": kl_weight,
        "distance_decay": distance_decay,
        "random_window": random_window,
        "curriculum": curriculum,
        "block_start": block_start,
        "attention": attention,
        "alignment": alignment,
        "order": order,
        "rank": rank,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "accumulation": accumulation,
        "recompute": recompute,
        "mask_token_id": mask_token_id,
        "seed": seed,
        "report_to": report_to,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    base = read_recipe(recipe) if recipe is not None else {}
    if {"steps", "minutes", "epochs"} & set(overrides):
        base = {n: v for n, v in base.items() if n not in ("steps", "minutes", "epochs")}
    job = make_job({**base, **overrides}, resume=resume)
    with TuneView() as view:
        results = run(job, view)
    if json is not None:
        rows_found = [result.row() for result in results]
        write_report(
            json,
            [{**row, "model": job.model, "adapter": str(job.output)} for row in rows_found],
        )
