"""`marslm export`: a trained model for other engines.

Knows nothing about what is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

marslm export --merged --model smollm2 --adapter runs/lora --output runs/merged

marslm export --merged --model runs/full --dtype bfloat16 --output runs/merged
"""

_DTYPES = ("float32", "bfloat16", "float16")


def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="A folder that is new.")
    ],
    merged: Annotated[
        bool, typer.Option("--merged", help="A stock checkpoint, the adapter folded in.")
    ] = False,
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    dtype: Annotated[
        str, typer.Option(help=f"What weights are stored in: {', '.join(_DTYPES)}.")
    ] = "float32",
) -> None:
    """Write a trained model as a checkpoint that other engines load as it is."""
    import torch

    from marslm.cli.render import console
    from marslm.errors import InputError
    from marslm.hub.export import export_merged

    if not merged:
        raise InputError("say what to export: --merged is the one form so far")
    if dtype not in _DTYPES:
        raise InputError(f"--dtype {dtype}: choose {', '.join(_DTYPES)}")
    adapter = options.find_adapter(model, adapter)
    written = export_merged(model, output, adapter=adapter, dtype=getattr(torch, dtype))
    console.print(
        f"{output}: {type(written.network).__name__}, [MASK] is token {written.mask_token_id}",
        markup=False,
    )
