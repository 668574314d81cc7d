"""Options that several commands share, and what they turn into.

Knows nothing about any one command.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from marslm.models import short_names

if TYPE_CHECKING:
    from marslm.models.loading import MarsModel

_OUTPUT = "Output"

Model: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="Hub name, local folder, .gguf file, [b]smollm2[/b] or [b]tiny[/b]."
    ),
]
Adapter: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        "-a",
        metavar="DIR|none",
        help="Adapter folder; without it, smollm2 uses the one that ships, if there is one.",
    ),
]

Quantize: TypeAlias = Annotated[
    Literal["none", "bf16", "int8"],
    typer.Option(
        "--quantize",
        help="Weights to decode with on a CPU: narrower ones are read faster.",
    ),
]

Strategy: TypeAlias = Annotated[
    str,
    typer.Option(
        "--strategy",
        "-s",
        help="ar (one token a step), lossless (same output, faster), mars (threshold tau), jacobi, "
        "prompt_lookup, draft_model, ...: see docs/decoding.md.",
        rich_help_panel="Decoding",
    ),
]
Tau: TypeAlias = Annotated[
    float,
    typer.Option(
        "--tau",
        "-t",
        help="Acceptance threshold of mars, above 0 and at most 1; lower is faster.",
        rich_help_panel="Decoding",
    ),
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of sampling.", rich_help_panel="Sampling")]
MaxNewTokens: TypeAlias = Annotated[
    int, typer.Option("--max-new-tokens", "-n", help="Length cap of an answer, in tokens.")
]


def _writable_file(path: Path | None) -> Path | None:
    """Refuse a place that no file can be written to before any work is done."""
    from marslm.errors import InputError
    from marslm.files import is_writable_place

    if path is None:
        return None
    if path.is_dir() or not is_writable_place(path):
        raise InputError(f"--json {path}: no file can be written there; name another")
    return path


Json: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the figures here.",
        rich_help_panel=_OUTPUT,
        callback=_writable_file,
    ),
]


def warn_if_untrained(model: MarsModel, strategy: str) -> None:
    """Say so when several tokens a forward are asked of a model that was not trained for it."""
    if model.record is None and strategy != "ar":
        warnings.warn(
            f"{model.name} was not trained for several tokens per forward: lossless gains little "
            "and mars writes nonsense; name an adapter, train one with `marslm tune`, or use "
            "--strategy ar",
            stacklevel=2,
        )


def names(text: str) -> list[str]:
    """Return comma-separated names of strategies; InputError if there are none."""
    from marslm.errors import InputError

    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise InputError("give at least one strategy, such as --strategies ar,lossless")
    return found


def counts(option: str, text: str) -> list[int]:
    """Return comma-separated numbers of at least 1; InputError for anything else."""
    from marslm.errors import InputError

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} is {text!r}: give numbers, as in 1,4,16") from error
    if min(found) < 1:
        raise InputError(f"{option} is {text!r}: give at least 1")
    return found


find_adapter = short_names.find_adapter
