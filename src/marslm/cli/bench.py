"""`marslm bench`: measurements that one command repeats.

Knows nothing about how they are taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marslm.cli import bench_engine, bench_gpu, bench_serve, bench_vllm, options
from marslm.cli.decoding import Decoding
from marslm.cli.groups import with_groups

app = typer.Typer(help="Measure this machine and these methods.", no_args_is_help=True)
app.command(epilog=bench_serve.EXAMPLES)(bench_serve.serve)
app.command(epilog=bench_serve.EXAMPLES)(bench_serve.soak)
app.command(epilog=bench_engine.EXAMPLES)(bench_engine.limit)
app.command(epilog=bench_engine.EXAMPLES)(bench_engine.step)
app.command(epilog=bench_engine.EXAMPLES)(bench_engine.batch)
app.command(epilog=bench_gpu.EXAMPLES)(bench_gpu.gpu)
app.command(epilog=bench_vllm.EXAMPLES)(bench_vllm.vllm)

EXAMPLES = """
[b]Examples[/b]

MARSLM_DATA=data marslm bench decode --strategies ar,mars,lossless --prompts 12 --json decode.json

marslm bench decode --data gsm8k_test.jsonl.gz --prompts 50 --adapter runs/gsm8k
"""


@app.command()
def plot(
    reports: Annotated[
        list[Path],
        typer.Argument(help="Reports of `bench decode`, or one of `bench serve`."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="SVG")] = Path("speed.svg"),
) -> None:
    """Draw speed against agreement with one-token decoding, or a server under load."""
    from marslm.plots.serving import plot_serving
    from marslm.plots.speed_agreement import plot_speed_agreement
    from marslm.report import read_rows

    rows = read_rows(reports[0])
    if rows and "streams" in rows[0]:
        plot_serving(rows, output)
    else:
        plot_speed_agreement(reports, output)


_COLUMNS = (
    "kind",
    "strategy",
    "tau",
    "forwards",
    "tokens_per_forward",
    "rows_per_forward",
    "tokens_per_second",
    "seconds_per_forward",
    "agreement",
    "identical_to_ar",
    "ties",
)


@app.command(epilog=EXAMPLES)
@with_groups(max_new_tokens=128)
def decode(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    strategies: Annotated[
        str, typer.Option(help="Comma-separated; each takes its turn on every prompt.")
    ] = "ar,mars,lossless",
    baseline: Annotated[
        str | None,
        typer.Option(help="Baseline beside them: transformers, llama-cpp or none."),
    ] = "transformers",
    data: Annotated[
        str,
        typer.Option(help="spec_bench (in the folder named by MARSLM_DATA) or a file of prompts."),
    ] = "spec_bench",
    prompts: Annotated[int, typer.Option(help="How many prompts, round-robin over kinds.")] = 12,
    batch: Annotated[int, typer.Option(help="Prompts decoded together.")] = 1,
    decoding: Decoding = Decoding(),  # noqa: B008 - only its fields' defaults are used
    json: options.Json = None,
) -> None:
    """Decode the same prompts with several strategies, interleaved; report speed and equality."""
    from marslm.bench.decode import DecodeBench, EncodedPrompt
    from marslm.cli.progress import bar
    from marslm.cli.render import print_rows
    from marslm.data.encode import encode_prompt
    from marslm.data.spec_bench import read_prompts
    from marslm.errors import InputError
    from marslm.models.loading import load
    from marslm.report import write_report

    params = decoding.params()
    names = _names(strategies, baseline, one_by_one=batch == 1 and params.temperature == 0)
    if batch < 1 or prompts < 1:
        raise InputError("give at least one prompt and a batch of at least one")
    texts = read_prompts(data, count=prompts, data_folder=None)
    adapter = options.find_adapter(model, adapter)
    loaded = load(model, adapter=adapter, quantize=quantize)
    encoded = [
        EncodedPrompt(encode_prompt(loaded.tokenizer, text.messages), text.kind) for text in texts
    ]
    measured = DecodeBench(
        loaded,
        names,
        params,
        batch=batch,
        longest_prompt=max(len(prompt.ids) for prompt in encoded),
        draft=decoding.load_draft(quantize),
    )
    with bar("decoding", len(encoded)) as done:
        measured.run(encoded, done)
    given = {"model": model, "adapter": adapter, "quantize": quantize}
    rows = [{**row, **given} for row in measured.rows()]
    print_rows(rows, _COLUMNS)
    if json is not None:
        write_report(json, rows)


def _names(strategies: str, baseline: str | None, *, one_by_one: bool) -> list[str]:
    """Return what takes its turn; the baseline only where it decodes one prompt, greedily."""
    from marslm.bench.decode import BASELINES
    from marslm.errors import InputError
    from marslm.strategies.registry import check_strategy

    names = options.names(strategies)
    for name in names:
        check_strategy(name)
    if baseline not in (None, "none", *BASELINES):
        raise InputError(f"unknown baseline {baseline!r}: choose {', '.join(BASELINES)} or none")
    return [*names, baseline] if baseline in BASELINES and one_by_one else names


_TRAIN_COLUMNS = ("objective", "time_ratio", "memory_ratio", "tokens_per_second", "peak_mib")


@app.command()
def train(
    model: Annotated[str, typer.Option("--model", "-m", help="tiny or smollm2.")] = "tiny",
    objectives: Annotated[
        str | None, typer.Option(help="Comma-separated; default: all. ar is always measured.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Steps of each objective, in turn.")] = 12,
    json: options.Json = None,
) -> None:
    """Time per clean token and peak memory of each objective, against full fine-tuning."""
    from marslm.cli.render import console, print_rows
    from marslm.errors import InputError
    from marslm.report import write_report
    from marslm.tuning.cost import OBJECTIVES, measure

    if rounds < 1:
        raise InputError(f"rounds is {rounds}: give at least 1")
    names = list(OBJECTIVES) if objectives is None else _split(objectives)
    with console.status("measuring") as status:
        rows = measure(model, names, rounds=rounds, listener=status.update)
    print_rows(rows, _TRAIN_COLUMNS)
    if json is not None:
        write_report(json, rows)


_STUDY_COLUMNS = (
    "variant",
    "seed",
    "accuracy_one_token",
    "accuracy",
    "tokens_per_forward",
    "lossless_tokens_per_forward",
)


@app.command()
def study(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder; what it holds is not run again.")
    ] = Path("runs/study"),
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 3,
    variants: Annotated[str | None, typer.Option(help="Comma-separated; default: all.")] = None,
    json: options.Json = None,
) -> None:
    """Train a tiny model with every objective and decode held-out sums: the paper's comparisons."""
    from marslm.cli.render import console, print_rows
    from marslm.errors import InputError
    from marslm.report import write_report
    from marslm.tuning.study import study as run

    if seeds < 1:
        raise InputError(f"seeds is {seeds}: give at least 1")
    names = None if variants is None else _split(variants)
    with console.status("training") as status:
        rows = run(output, seeds=range(seeds), names=names, listener=status.update)
    print_rows(rows, _STUDY_COLUMNS)
    if json is not None:
        write_report(json, rows)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
