"""The command tree, and how errors end a command.

Bad input is one line on standard error and exit code 2; Ctrl-C is exit code 130. Knows nothing
about what the commands do.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from marslm._version import __version__
from marslm.cli import (
    bench,
    calibrate,
    chat,
    demo,
    distill,
    evaluate,
    export,
    generate,
    info,
    plot,
    serve,
    tune,
)
from marslm.errors import InputError

_EXTRAS = {
    "peft": "train",
    "accelerate": "train",
    "datasets": "train",
    "yaml": "train",
    "matplotlib": "bench",
    "gguf": "gguf",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "opentelemetry": "serve",
    "opentelemetry.sdk": "otel",
    "opentelemetry.exporter": "otel",
    "vllm": "vllm",
    "lm_eval": "eval",
    "nltk": "eval",
    "punkt": "eval",
}
"""Which extra brings an optional package."""

app = typer.Typer(
    name="marslm",
    help="Several tokens per forward pass from one language model (MARS, arXiv 2604.07023).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command(epilog=demo.EXAMPLES)(demo.demo)
app.command(epilog=tune.EXAMPLES)(tune.tune)
app.command(epilog=distill.EXAMPLES)(distill.distill)
app.command(epilog=plot.EXAMPLES)(plot.plot)
app.command(epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.command(epilog=export.EXAMPLES)(export.export)
app.command(epilog=generate.EXAMPLES)(generate.generate)
app.command(epilog=chat.EXAMPLES)(chat.chat)
app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=info.EXAMPLES)(info.info)
app.add_typer(bench.app, name="bench")
app.add_typer(evaluate.app, name="eval")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also draw what the command prints, as a picture of a terminal."
        ),
    ] = None,
) -> None:
    """Options before any command."""
    if svg is not None:
        from marslm.cli.recording import start_recording

        context.call_on_close(start_recording(svg, sys.argv[1:]))


def main() -> None:
    """Run the command line; the process' exit code says how it went."""
    # Its bars and advice interleave with ours; errors still come through.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch|transformers")
    warnings.showwarning = _show_warning
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        extra = f"pip install 'marslm[{_EXTRAS[error.name]}]'"
        print(f"error: {error.name} is not installed; run {extra}", file=sys.stderr)
        sys.exit(2)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
