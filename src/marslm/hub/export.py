"""A trained model as a stock checkpoint: it loads as its own architecture anywhere.

The folder is an ordinary transformers checkpoint. Its configuration names [MASK] the way that
parallel drafters do (`mask_token_id`, `pard_token`), and its generation settings never write it.
Knows nothing about how the weights were trained.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from marslm import files
from marslm.core.forms import MARS
from marslm.errors import InputError
from marslm.models.loading import MarsModel, load
from marslm.models.record import MarsRecord


def export_merged(
    model: str,
    output: Path,
    *,
    adapter: str | Path | None = None,
    dtype: torch.dtype | None = None,
) -> MarsModel:
    """Write `model`, with `adapter` folded in, to the new folder `output`; return what was written.

    dtype: what the weights are stored in; default what `load` chooses, float32 on a CPU.

    Raises InputError if `output` exists, if nothing was trained, if the adapter is mask-only (it
    changes the rows of masks alone, which no single matrix can), or if it is Medusa heads.
    """
    if output.exists():
        raise InputError(f"{output} exists already; name a folder that does not")
    loaded = load(model, adapter=adapter, device="cpu")
    record = _mergeable(loaded)
    network = loaded.network if dtype is None else loaded.network.to(dtype)  # type: ignore[arg-type]
    network.config.mask_token_id = record.mask_token_id
    if record.form == MARS:
        # What a parallel drafter is asked for: the next token and those at masks after it.
        network.config.pard_token = record.mask_token_id
    if network.generation_config is not None:
        network.generation_config.suppress_tokens = [record.mask_token_id]
    with files.new_folder(output) as draft:
        network.save_pretrained(draft)
        loaded.tokenizer.save_pretrained(draft)
        if loaded.calibration is not None:
            loaded.calibration.save(draft)
        record.save(draft)
    return loaded


def _mergeable(model: MarsModel) -> MarsRecord:
    """Return the record of the merged weights, or say why there can be none."""
    if model.adapter is not None:
        raise InputError(
            "a mask-only adapter cannot be merged: it changes the rows of masks alone; serve it "
            "beside its base model, or train one with `marslm tune --mode lora`"
        )
    if model.heads is not None:
        raise InputError(
            "Medusa heads cannot be merged: no stock architecture has them; serve them with "
            "--adapter and --strategy medusa"
        )
    if model.record is None:
        raise InputError(
            f"{model.name} was not trained for several tokens per forward; name an --adapter"
        )
    return replace(model.record, mode="full")
