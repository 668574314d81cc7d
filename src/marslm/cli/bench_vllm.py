"""`marslm bench vllm`: speed inside vLLM.

Knows nothing about how it is measured.
"""

from __future__ import annotations

from typing import Annotated

import typer

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

MARSLM_DATA=data marslm bench vllm --prompts 16 --json vllm.json

marslm bench vllm -m runs/merged --data questions.jsonl --requests 1,16 --max-length 512
"""

_COLUMNS = (
    "variant",
    "requests",
    "tokens",
    "seconds",
    "tokens_per_second",
    "speed",
    "tokens_per_forward",
    "identical_to_plain",
    "answers",
)


def vllm(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    data: Annotated[
        str,
        typer.Option(help="spec_bench (in the folder named by MARSLM_DATA) or a file of prompts."),
    ] = "spec_bench",
    prompts: Annotated[int, typer.Option(help="How many prompts, round-robin over kinds.")] = 16,
    requests: Annotated[str, typer.Option(help="Comma-separated: requests at once.")] = "1,4,16",
    tau: options.Tau = 0.9,
    max_new_tokens: options.MaxNewTokens = 64,
    max_length: Annotated[
        int, typer.Option(help="Tokens of prompt and answer together; longer prompts are left out.")
    ] = 1024,
    dtype: Annotated[
        str, typer.Option(help="What weights are held in: auto, float32, ...")
    ] = "auto",
    memory: Annotated[float, typer.Option(help="Share of a GPU for each of the engines.")] = 0.28,
    eager: Annotated[bool, typer.Option("--eager", help="Neither graphs nor compilation.")] = False,
    json: options.Json = None,
) -> None:
    """Compare plain, n-gram, lossless and tau inside vLLM, taking turns on every prompt."""
    from marslm.backends.vllm.bench import run_bench
    from marslm.backends.vllm.command import place_of
    from marslm.cli.render import console, print_rows
    from marslm.data.encode import encode_prompt
    from marslm.data.spec_bench import read_prompts
    from marslm.errors import InputError
    from marslm.models.loading import load_tokenizer
    from marslm.report import write_report

    tokenizer = load_tokenizer(model)
    texts = read_prompts(data, count=prompts, data_folder=None)
    encoded = [encode_prompt(tokenizer, text.messages) for text in texts]
    fitting = [ids for ids in encoded if len(ids) + max_new_tokens < max_length]
    if not fitting:
        raise InputError(
            f"no prompt leaves room for {max_new_tokens} new tokens within --max-length "
            f"{max_length}: raise it"
        )
    with console.status("starting") as status:
        rows = run_bench(
            place_of(model),
            options.find_adapter(model, adapter),
            fitting,
            requests=options.counts("--requests", requests),
            tau=tau,
            max_new_tokens=max_new_tokens,
            engine={
                "max_model_len": max_length,
                "dtype": dtype,
                "gpu_memory_utilization": memory,
                "enforce_eager": eager,
            },
            listener=status.update,
        )
    print_rows(rows, _COLUMNS)
    if json is not None:
        write_report(json, rows)
