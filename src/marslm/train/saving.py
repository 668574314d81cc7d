"""Writes what a run trained: an adapter, Medusa heads, or a whole model.

A folder counts as a result once its `mars.json` is there, and that comes last. Knows nothing about
how they were trained.
"""

from __future__ import annotations

import filecmp
import json
from pathlib import Path
from typing import Any, TypeAlias

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marslm import files
from marslm.models.adapter import CONFIG_FILE, MASK_ONLY_PEFT_TYPE, WEIGHTS_FILE
from marslm.models.calibration import FILE_NAME as CALIBRATION_FILE
from marslm.models.medusa import WEIGHTS_FILE as HEADS_FILE
from marslm.models.medusa import MedusaHeads
from marslm.models.record import FILE_NAME, MarsRecord

State: TypeAlias = "dict[str, Any] | None"
"""Weights by name where the network holds only shards of them; None: take the network's own."""


def save_adapter(network: PeftModel, record: MarsRecord, folder: Path, state: State = None) -> None:
    """Write the adapter in PEFT's files, bfloat16, with `mars.json`.

    A mask-only adapter is not named LORA, so that PEFT refuses it instead of applying it to rows it
    was not made for.
    """
    weights = {
        name: tensor.to(torch.bfloat16).contiguous().cpu()
        for name, tensor in get_peft_model_state_dict(network, state_dict=state).items()
    }
    config = _plain(network.peft_config["default"].to_dict())
    if record.mode == "mask-only":
        config["peft_type"] = MASK_ONLY_PEFT_TYPE
    config["inference_mode"] = True
    # The name that was asked for; the place where this machine keeps it is nobody else's.
    config["base_model_name_or_path"] = record.training.get("base_model")
    folder.mkdir(parents=True, exist_ok=True)
    with files.new_folder(folder / ".adapter") as draft:
        save_file(weights, draft / WEIGHTS_FILE, metadata={"format": "pt"})
        files.write_text(draft / CONFIG_FILE, json.dumps(config, indent=1, sort_keys=True) + "\n")
        record.save(draft)
    _publish(folder / ".adapter", folder)


def save_heads(heads: MedusaHeads, record: MarsRecord, folder: Path) -> None:
    """Write Medusa heads, bfloat16, with `mars.json`."""
    weights = {n: w.to(torch.bfloat16).contiguous().cpu() for n, w in heads.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    with files.new_folder(folder / ".heads") as draft:
        save_file(weights, draft / HEADS_FILE, metadata={"format": "pt"})
        record.save(draft)
    _publish(folder / ".heads", folder)


def save_model(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    record: MarsRecord,
    folder: Path,
    state: State = None,
) -> None:
    """Write a whole model, loadable by transformers, with `mars.json`."""
    if state is not None:
        # Gathered, tied weights are copies of one another; a model names them once.
        state = {name: state[name] for name, _ in network.named_parameters()}
    folder.mkdir(parents=True, exist_ok=True)
    with files.new_folder(folder / ".model") as draft:
        network.save_pretrained(draft, state_dict=state)
        tokenizer.save_pretrained(draft)
        record.save(draft)
    _publish(folder / ".model", folder)


def _publish(draft: Path, folder: Path) -> None:
    """Move complete files from `draft` into `folder`, which is no result until its record is in.

    Thresholds that were measured on other weights go.
    """
    (folder / FILE_NAME).unlink(missing_ok=True)
    if not _has_same_weights(draft, folder):
        (folder / CALIBRATION_FILE).unlink(missing_ok=True)
    for path in sorted(draft.iterdir(), key=lambda path: path.name == FILE_NAME):
        path.replace(folder / path.name)
    draft.rmdir()


def _has_same_weights(draft: Path, folder: Path) -> bool:
    return all(
        (folder / path.name).exists() and filecmp.cmp(path, folder / path.name, shallow=False)
        for path in draft.glob("*.safetensors")
    )


def _plain(value: Any) -> Any:
    """Return `value` as JSON types: PEFT's configuration holds sets and enumerations."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, set):
        return sorted(_plain(item) for item in value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return getattr(value, "value", value)
    return str(value)
