"""`marslm bench serve` and `marslm bench soak`: a server under load, and under a long mixed one.

Knows nothing about how requests are sent.
"""

from __future__ import annotations

from typing import Annotated

import typer

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

marslm bench serve --strategies ar,mars,lossless --streams 1,4,16 --json serve.json

marslm bench serve --strategies lossless-chain --slo tpot=40ms --streams 1,8,1

marslm bench soak --model tiny --minutes 30 --requests 2000
"""

_COLUMNS = (
    "strategy",
    "streams",
    "tokens_per_second",
    "tokens_per_forward",
    "ttft_p50",
    "ttft_p95",
    "inter_token_p50",
    "inter_token_p95",
    "inter_token_p99",
    "tau",
    "block",
    "moves",
)


def serve(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    strategies: Annotated[
        str, typer.Option(help="Comma-separated; each takes its turn at every load.")
    ] = "ar,mars,lossless",
    streams: Annotated[str, typer.Option(help="Most streams at once, comma-separated.")] = (
        "1,2,4,8,16,32"
    ),
    rate: Annotated[
        float, typer.Option(help="Poisson arrivals a second, for each of the streams.")
    ] = 1.0,
    requests: Annotated[int, typer.Option(help="Requests of one run, for each stream.")] = 4,
    data: Annotated[
        str,
        typer.Option(help="spec_bench (in the folder named by MARSLM_DATA) or a file of prompts."),
    ] = "spec_bench",
    prompts: Annotated[int, typer.Option(help="How many prompts, asked in turn.")] = 24,
    tau: options.Tau = 0.7,
    max_new_tokens: options.MaxNewTokens = 64,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Serve with this --slo and leave tau and B to the knob; for one strategy, "
            "whose loads follow one another."
        ),
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = None,
) -> None:
    """Measure a server: throughput, time to first token and between tokens, by load."""
    from marslm.bench.serve import Load
    from marslm.bench.serve_runs import Questions, run
    from marslm.bench.server import serving
    from marslm.cli.progress import bar
    from marslm.cli.render import print_rows
    from marslm.data.spec_bench import read_prompts
    from marslm.data.template import turn_of
    from marslm.errors import InputError
    from marslm.report import Row, write_report
    from marslm.strategies.registry import check_strategy

    names, counts = options.names(strategies), options.counts("--streams", streams)
    for name in names:
        check_strategy(name)
    if slo is not None and len(names) != 1:
        raise InputError("--slo turns one knob: name one strategy with --strategies")
    chats = [
        [turn_of(message) for message in prompt.messages]
        for prompt in read_prompts(data, count=prompts, data_folder=None)
    ]
    questions = Questions(chats, max_new_tokens, follows_knob=slo is not None)
    policy = [] if slo is None else ["--slo", slo]
    rows: list[Row] = []
    with (
        serving([*_arguments(model, adapter, quantize, slots=max(counts)), *policy]) as server,
        bar("serving", len(names) * requests * sum(counts)) as done,
    ):
        for count in counts:
            for name in names:
                before = sum(int(row["requests"] or 0) for row in rows)
                load = Load(count, rate * count, requests * count)
                row = run(
                    server,
                    questions,
                    name,
                    tau if name == "mars" else None,
                    load,
                    seed,
                    lambda n, b=before: done(b + n),  # type: ignore[misc]
                )
                given: Row = {"model": model, "quantize": quantize, "rate": load.rate, "slo": slo}
                rows.append({**row, **given})
    print_rows(rows, _COLUMNS)
    if json is not None:
        write_report(json, rows)


def soak(
    model: options.Model = "tiny",
    adapter: options.Adapter = None,
    minutes: Annotated[float, typer.Option(help="How long requests keep coming.")] = 30,
    requests: Annotated[int, typer.Option(help="How many.")] = 2000,
    data: Annotated[
        str | None, typer.Option(help="spec_bench or a file of prompts; default: made-up sums.")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Different prompts, answered beforehand.")] = 48,
    slots: Annotated[int, typer.Option(help="Requests decoded together.")] = 8,
    max_new_tokens: options.MaxNewTokens = 96,
    seed: options.Seed = 0,
    json: options.Json = None,
) -> None:
    """Keep a server busy with leavers, nonsense and knob turns; exit code 1 if anything broke."""
    import asyncio

    from marslm.bench.server import serving
    from marslm.bench.soak import known_cases
    from marslm.bench.soak import soak as run_soak
    from marslm.cli.progress import bar
    from marslm.cli.render import print_rows
    from marslm.data.spec_bench import read_prompts
    from marslm.models.loading import load
    from marslm.report import write_report

    if data is None:
        texts = [f"{7 * i % 90} + {i + 3} = ?" for i in range(prompts)]
    else:
        found = read_prompts(data, count=prompts, data_folder=None)
        texts = [prompt.messages[-1].content for prompt in found]
    loaded = load(model, adapter=options.find_adapter(model, adapter))
    cases = known_cases(loaded, texts, max_new_tokens, seed)
    with (
        serving(_arguments(model, adapter, "none", slots=slots)) as server,
        bar("soaking", requests) as done,
    ):
        row = asyncio.run(
            run_soak(server, cases, requests=requests, seconds=60 * minutes, seed=seed, done=done)
        )
    print_rows([row], list(row))
    if json is not None:
        write_report(json, [{**row, "model": model}])
    if row["faults"]:
        raise typer.Exit(1)


def _arguments(model: str, adapter: str | None, quantize: str, *, slots: int) -> list[str]:
    named = [] if adapter is None else ["--adapter", adapter]
    given = ["--model", model, *named, "--quantize", quantize]
    return [*given, "--slots", str(slots), "--max-waiting", "1000"]
