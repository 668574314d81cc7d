"""`marslm bench limit`, `step` and `batch`: the engine against the machine, and against a barrier.

Knows nothing about how they are measured.
"""

from __future__ import annotations

from typing import Annotated

import typer

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

marslm bench limit --model smollm2 --json limit.json

marslm bench step --profile --strategies ar,lossless --batches 1,4,16 --quantize int8

marslm bench batch --requests 64 --batches 1,4,8,16 --granularities 4,16,64,256 --json batch.json
"""

_LIMIT_COLUMNS = (
    "quantize",
    "extra_rows",
    "seconds",
    "limit_seconds",
    "fraction_of_limit",
    "cost_4_extra_rows",
    "cost_8_extra_rows",
    "agreement",
)
_ASKED = (
    "What is the capital of France, and what is it known for?",
    "A bus has 40 seats and 3 buses are full. How many people are on the buses?",
    "Write two sentences about rain.",
    "Explain what a prime number is.",
    "List the months of the year.",
    "Translate into German: The weather is nice today.",
)
_STEP_COLUMNS = (
    "strategy",
    "batch",
    "seconds",
    "propose_share",
    "lay_out_share",
    "forward_share",
    "accept_share",
    "bookkeeping_share",
)


def limit(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    rounds: Annotated[int, typer.Option(help="How often each step is timed, in turns.")] = 12,
    context: Annotated[int, typer.Option(help="Tokens in the cache.")] = 256,
    json: options.Json = None,
) -> None:
    """Memory bandwidth, matrix rate, and how near a step of each kind of weights comes to them."""
    from marslm.bench.agreement import agreement
    from marslm.bench.limit import LimitBench
    from marslm.cli.progress import bar
    from marslm.cli.render import console, print_rows
    from marslm.errors import InputError
    from marslm.models.loading import load
    from marslm.models.quantize import usable
    from marslm.report import Row, write_report

    for name, value in (("rounds", rounds), ("context", context)):
        if value < 1:
            raise InputError(f"{name} is {value}: give at least 1")
    adapter = options.find_adapter(model, adapter)
    loaded = load(model, adapter=adapter, device="cpu")
    measured = LimitBench(loaded, usable(), context=context)
    with bar("measuring", rounds) as done:
        measured.run(rounds, done)
    agree = agreement(loaded, usable(), _ASKED, max_new_tokens=48)
    rows: list[Row] = [
        {**row, "agreement": agree[kind], "model": model, "adapter": adapter}
        for kind, row in measured.rows()
    ]
    console.print(
        f"memory {rows[0]['bytes_per_second']:.3g} bytes/s, "
        f"float32 products {rows[0]['float32_operations_per_second']:.3g} operations/s, "
        f"{rows[0]['threads']} threads"
    )
    print_rows(rows, _LIMIT_COLUMNS)
    if json is not None:
        write_report(json, rows)


def step(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    profile: Annotated[
        bool, typer.Option("--profile", help="Break a step down into its parts.")
    ] = False,
    strategies: Annotated[str, typer.Option(help="Comma-separated.")] = "ar,lossless",
    batches: Annotated[str, typer.Option(help="Requests of a step, comma-separated.")] = "1,4,16",
    max_new_tokens: options.MaxNewTokens = 24,
    json: options.Json = None,
) -> None:
    """Seconds of a decoding step by strategy and batch; with --profile, of each of its parts."""
    from marslm.bench.step import profile as profile_step
    from marslm.cli.render import console, print_rows
    from marslm.engine.api import encode
    from marslm.models.loading import load
    from marslm.report import Row, write_report
    from marslm.runtime.params import SamplingParams
    from marslm.strategies.registry import check_strategy

    names = options.names(strategies)
    for name in names:
        check_strategy(name)
    adapter = options.find_adapter(model, adapter)
    loaded = load(model, adapter=adapter, quantize=quantize)
    prompts = [encode(loaded, f"{7 * i} + {i + 3} = ? Think step by step.") for i in range(4)]
    rows: list[Row] = []
    with console.status("measuring"):
        for batch in options.counts("--batches", batches):
            for name in names:
                params = SamplingParams(
                    strategy=name, max_new_tokens=max_new_tokens, ignore_eos=True
                )
                rows.append(profile_step(loaded, prompts, params, batch=batch))
    print_rows(rows, _STEP_COLUMNS if profile else _STEP_COLUMNS[:3])
    if json is not None:
        write_report(json, [{**row, "model": model, "adapter": adapter} for row in rows])


_BATCH_COLUMNS = (
    "batch",
    "way",
    "granularity",
    "steps",
    "rows",
    "seconds",
    "tokens",
    "gain_in_steps",
    "gain",
    "seconds_at_papers_step",
)


def batch(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    tau: options.Tau = 0.7,
    batches: Annotated[str, typer.Option(help="Requests at once, comma-separated.")] = "1,4,8,16",
    granularities: Annotated[
        str, typer.Option(help="Tokens of a block of the barrier's cache, comma-separated.")
    ] = "4,16,64,256",
    requests: Annotated[int, typer.Option(help="The queue that is drained.")] = 64,
    data: Annotated[
        str,
        typer.Option(help="spec_bench (in the folder named by MARSLM_DATA) or a file of prompts."),
    ] = "spec_bench",
    max_new_tokens: options.MaxNewTokens = 64,
    json: options.Json = None,
) -> None:
    """Drain a queue with the paper's block cache, with no cache, and with our engine (table 5)."""
    from marslm.bench.block_barrier import BatchBench
    from marslm.cli.render import console, print_rows
    from marslm.data.spec_bench import read_prompts
    from marslm.engine.api import encode
    from marslm.errors import InputError
    from marslm.models.loading import load
    from marslm.report import Row, write_report
    from marslm.runtime.params import SamplingParams

    if requests < 1:
        raise InputError(f"requests is {requests}: give at least 1")
    sizes, blocks = (
        options.counts("--batches", batches),
        options.counts("--granularities", granularities),
    )
    params = SamplingParams(
        strategy="mars", tau=tau, max_new_tokens=max_new_tokens, ignore_eos=True
    )
    texts = read_prompts(data, count=requests, data_folder=None)
    adapter = options.find_adapter(model, adapter)
    loaded = load(model, adapter=adapter, quantize=quantize)
    queue = [encode(loaded, list(texts[i % len(texts)].messages)) for i in range(requests)]
    with console.status("draining") as status:
        found = BatchBench(loaded, queue, params).rows(sizes, blocks, status.update)
    given: Row = {"strategy": "mars", "tau": tau, "model": model, "quantize": quantize}
    print_rows(found, _BATCH_COLUMNS)
    if json is not None:
        write_report(json, [{**row, **given, "adapter": adapter} for row in found])
