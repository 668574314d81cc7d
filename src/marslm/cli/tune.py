"""`marslm tune`: train a model, or an adapter for it, to write several tokens per forward.

Knows nothing about how training works.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from marslm.cli import options
from marslm.cli.groups import panel_option, with_groups

_RUN = "Run"
_LENGTH = "Length"
_DATA = "Data"
_METHOD = "Method"
_ABLATION = "Form of a block (ablations)"

_LENGTHS = {"steps", "minutes", "epochs"}

EXAMPLES = """
[b]Examples[/b]

marslm tune --recipe recipes/tiny/mars.yaml

marslm tune --data chats.jsonl --mode mask-only --minutes 60 --output runs/mine

marslm tune -m Qwen/Qwen2.5-0.5B-Instruct --data owner/set --mode lora --steps 2000 -o runs/qwen

marslm tune --data chats.jsonl --mode mask-only --minutes 60 --output runs/mine --resume
"""


@dataclass(frozen=True)
class Settings:
    """What a recipe may hold too, by the same names; None: not given."""

    data: Annotated[
        str | None,
        panel_option(
            _RUN,
            help="Rows of chats (.jsonl, .json, .gz, .parquet), a Hub data set, or arithmetic.",
        ),
    ] = None
    output: Annotated[
        str | None, panel_option(_RUN, "--output", "-o", metavar="DIR", help="Folder of the run.")
    ] = None
    model: Annotated[
        str | None,
        panel_option(_RUN, "--model", "-m", help="As for `marslm generate`; default smollm2."),
    ] = None
    mode: Annotated[
        str | None,
        panel_option(
            _RUN,
            help="mask-only (base bit-identical; default), lora (merged at load), full, or "
            "medusa (heads, a baseline).",
        ),
    ] = None
    objective: Annotated[
        str | None, panel_option(_RUN, help="mars (default), ar (plain SFT) or block_diffusion.")
    ] = None
    minutes: Annotated[
        float | None, panel_option(_LENGTH, help="Length of training, in minutes.")
    ] = None
    steps: Annotated[int | None, panel_option(_LENGTH, help="Length of training, in steps.")] = None
    epochs: Annotated[
        float | None, panel_option(_LENGTH, help="Length of training, in passes.")
    ] = None
    from_adapter: Annotated[
        str | None,
        panel_option(
            _RUN, metavar="DIR", help="Start from this mask-only adapter; mask-only, lora."
        ),
    ] = None
    rows: Annotated[int | None, panel_option(_DATA, help="Rows of the data to train on.")] = None
    held_out: Annotated[
        int | None,
        panel_option(_DATA, help="Rows after those, to measure on at the end; default 16."),
    ] = None
    answers: Annotated[
        str | None,
        panel_option(
            _DATA, help="gold (the data's) or self (the model's own; default for mask-only)."
        ),
    ] = None
    turns: Annotated[
        str | None, panel_option(_DATA, help="Supervise all assistant turns (default) or the last.")
    ] = None
    max_length: Annotated[int | None, panel_option(_DATA, help="Longest sequence, in tokens.")] = (
        None
    )
    packing: Annotated[
        bool | None,
        panel_option(_DATA, help="Put several examples into one sequence; none sees another."),
    ] = None
    max_new_tokens: Annotated[
        int | None, panel_option(_DATA, help="Longest answer of --answers self.")
    ] = None
    block_size: Annotated[
        int | None, panel_option(_METHOD, "--block", "-B", help="Candidates per step.")
    ] = None
    ar_weight: Annotated[
        float | None, panel_option(_METHOD, help="w in L = L_mask + w * L_AR; full and lora.")
    ] = None
    balance_ar: Annotated[
        bool | None, panel_option(_METHOD, help="Multiply w by the running L_mask / L_AR.")
    ] = None
    anchors: Annotated[
        int | None,
        panel_option(_METHOD, help="Masked blocks sampled per example; else fixed blocks."),
    ] = None
    kl_weight: Annotated[
        float | None, panel_option(_METHOD, help="Share of KL to the clean stream; mask-only.")
    ] = None
    distance_decay: Annotated[
        float | None, panel_option(_METHOD, help="Weight per mask seen, up to 1.")
    ] = None
    random_window: Annotated[
        bool | None, panel_option(_METHOD, help="Draw B anew at each visit.")
    ] = None
    curriculum: Annotated[
        float | None, panel_option(_METHOD, help="Share of the run over which B grows from 2.")
    ] = None
    block_start: Annotated[str | None, panel_option(_ABLATION, help="clean or previous_mask.")] = (
        None
    )
    attention: Annotated[
        str | None, panel_option(_ABLATION, help="causal or bidirectional in a block.")
    ] = None
    alignment: Annotated[
        str | None, panel_option(_ABLATION, help="What a mask predicts: the next token or its own.")
    ] = None
    order: Annotated[str | None, panel_option(_ABLATION, help="left_to_right or confidence.")] = (
        None
    )
    rank: Annotated[int | None, panel_option(_METHOD, help="Rank of the adapter.")] = None
    learning_rate: Annotated[
        float | None, panel_option(_METHOD, "--lr", help="Peak learning rate.")
    ] = None
    batch_size: Annotated[
        int | None, panel_option(_RUN, help="Sequences per step, over all processes.")
    ] = None
    accumulation: Annotated[
        int | None, panel_option(_RUN, help="Micro-batches that a step is split into.")
    ] = None
    recompute: Annotated[
        bool | None, panel_option(_RUN, help="Activation checkpointing: memory for time.")
    ] = None
    mask_token_id: Annotated[int | None, panel_option(_RUN, help="Row to use as [MASK].")] = None
    seed: Annotated[
        int | None, panel_option(_RUN, help="Seed of masks, order and initial weights.")
    ] = None
    report_to: Annotated[
        str | None, panel_option(_RUN, help="Also tensorboard, wandb or trackio.")
    ] = None


@with_groups()
def tune(
    settings: Settings,
    recipe: Annotated[
        Path | None,
        typer.Option(help="YAML file of settings; options given here override it.", metavar="FILE"),
    ] = None,
    resume: Annotated[
        bool, panel_option(_LENGTH, "--resume", help="Continue from the last checkpoint.")
    ] = False,
    json: options.Json = None,
) -> None:
    """Train for several tokens per forward."""
    from marslm.cli.tune_view import TuneView
    from marslm.report import write_report
    from marslm.tuning.recipe import make_job, read_recipe
    from marslm.tuning.tune import tune as run

    base = read_recipe(recipe) if recipe is not None else {}
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    if given.keys() & _LENGTHS:
        base = {name: value for name, value in base.items() if name not in _LENGTHS}
    job = make_job({**base, **given}, resume=resume)
    with TuneView() as view:
        results = run(job, view)
    if json is not None:
        facts = {"model": job.model, "adapter": str(job.output)}
        write_report(json, [{**result.row(), **facts} for result in results])
