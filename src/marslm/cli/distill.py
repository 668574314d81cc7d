"""`marslm distill`: training data that the model writes itself.

Knows nothing about how prompts and answers are written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marslm.cli import options

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from marslm.distill.job import DistillJob
    from marslm.distill.writers import Writer
    from marslm.models.quantize import Quantize

EXAMPLES = """
[b]Examples[/b]

marslm distill --self-prompts 4000 --output runs/self.jsonl

marslm distill --prompts questions.jsonl --exclude heldout.jsonl -o runs/answers.jsonl

marslm distill -m owner/model --self-prompts 9000 --endpoint http://localhost:8000/v1 -o q.jsonl

marslm tune --data runs/self.jsonl --answers gold --mode mask-only --minutes 60 -o runs/mine
"""


def distill(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Chat rows (.jsonl); what is there is kept."),
    ],
    model: options.Model = "smollm2",
    quantize: options.Quantize = "none",
    prompts: Annotated[
        str | None, typer.Option(help="Prompts to answer: a file or a Hub data set.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="How many of those to use.")] = None,
    self_prompts: Annotated[
        int, typer.Option(help="How many prompts the model writes itself.")
    ] = 0,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="File of prompts to keep out, and what is near them; may be repeated."),
    ] = None,
    any_language: Annotated[
        bool, typer.Option("--any-language", help="Keep prompts that are not English.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An OpenAI-compatible server that does the writing."),
    ] = None,
    max_new_tokens: options.MaxNewTokens = 256,
    max_length: Annotated[int, typer.Option(help="Prompt and answer together, in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(help="Of the answers; 0 is greedy.")] = 0.0,
    seed: Annotated[
        int, typer.Option(help="Of the first self-written prompt; the next count up from it.")
    ] = 0,
    slots: Annotated[int, typer.Option(help="How many texts are written at once.")] = 64,
    json: options.Json = None,
) -> None:
    """Have a model write prompts and answers to train on."""
    from marslm.cli.distill_view import DistillView
    from marslm.distill.distill import distill as run
    from marslm.distill.job import DistillJob
    from marslm.report import write_report

    job = DistillJob(
        model=model,
        output=output,
        prompts=prompts,
        rows=rows,
        self_prompts=self_prompts,
        exclude=exclude or (),
        english=not any_language,
        max_length=max_length,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    writer, tokenizer = _writer(job, endpoint, slots, quantize)
    with DistillView() as view:
        report = run(job, writer, tokenizer, view)
        view.show_report(report)
    if json is not None:
        write_report(
            json, [{"model": model, "quantize": quantize, "output": str(output), **report.row()}]
        )


def _writer(
    job: DistillJob, endpoint: str | None, slots: int, quantize: Quantize
) -> tuple[Writer, PreTrainedTokenizerBase]:
    """Return who writes, and the tokenizer of the model."""
    from marslm.distill.writers import EndpointWriter, EngineWriter
    from marslm.errors import InputError
    from marslm.models.loading import load, load_tokenizer

    if endpoint is not None:
        if quantize != "none":
            raise InputError("--quantize is for this process: leave it out with --endpoint")
        tokenizer = load_tokenizer(job.model)
        return EndpointWriter(endpoint, job.model, concurrency=slots), tokenizer
    model = load(job.model, quantize=quantize)
    return EngineWriter(model, slots=slots, max_length=job.max_length), model.tokenizer
