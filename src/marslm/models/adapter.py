"""Adapters on disk and what decoding needs of them.

Two kinds share one file format, PEFT's LoRA: `lora` changes every row and is merged into the
weights; `mask-only` changes the rows of masks alone (gated LoRA, arXiv 2507.11851), so the base
model stays bit-identical, and cannot be merged. Both carry [MASK]'s own embedding.

Knows nothing about training and needs no peft.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marslm.errors import InputError
from marslm.models.record import MarsRecord, marks_of, read_record

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MASK_ONLY_PEFT_TYPE = "MASK_ONLY_LORA"
"""`peft_type` of a mask-only adapter: PEFT knows no such type and refuses it, where calling it
LORA would make PEFT apply it to every row."""

_PREFIX = "base_model.model."
_MASK_EMBEDDING = f"{_PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta"


@dataclass(frozen=True)
class LowRank:
    """One module's update: y += up @ (down @ x), with the scale already in `up`.

    down: [rank, in]. up: [out, rank].
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True)
class Adapter:
    """An adapter in memory.

    updates: by module name, such as "model.layers.0.self_attn.q_proj". mask_embedding: [hidden].
    """

    record: MarsRecord
    updates: dict[str, LowRank]
    mask_embedding: Tensor


def read_adapter_record(folder: Path) -> MarsRecord:
    """Return what an adapter folder says of itself; InputError if it is not one."""
    if not folder.is_dir():
        raise InputError(f"no adapter at {folder}; give a folder that `marslm tune` wrote")
    record = read_record(folder)
    if record.mode == "full":
        raise InputError(f"{folder} holds a whole model, not an adapter; load it with --model")
    return record


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter folder; InputError if something in it is missing or broken."""
    record = read_adapter_record(folder)
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS_FILE)
        updates = _updates(weights, scale=config["lora_alpha"] / config["r"])
        return Adapter(record, updates, mask_embedding=weights[_MASK_EMBEDDING][0].float())
    except (OSError, json.JSONDecodeError, SafetensorError, KeyError, TypeError) as error:
        raise InputError(f"the adapter in {folder} is damaged ({error}); restore it") from error


def _updates(weights: dict[str, Tensor], scale: float) -> dict[str, LowRank]:
    suffix = ".lora_A.weight"
    modules = [name.removesuffix(suffix) for name in weights if name.endswith(suffix)]
    return {
        module.removeprefix(_PREFIX): LowRank(
            down=weights[f"{module}.lora_A.weight"].float(),
            up=weights[f"{module}.lora_B.weight"].float() * scale,
        )
        for module in modules
    }


def check_adapter(
    record: MarsRecord, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise InputError if an adapter is for another architecture or tokenizer.

    Other weights of the same model only warn: an adapter often works on a sibling checkpoint.
    """
    made_for, given = record.base, marks_of(network, tokenizer)
    if made_for.architecture != given.architecture:
        raise InputError(
            f"this adapter was made for a model with {made_for.architecture}, but this one has "
            f"{given.architecture}; load the model that it was trained on"
        )
    if made_for.tokenizer != given.tokenizer:
        raise InputError(
            "this adapter was made for another tokenizer; load the model that it was trained on"
        )
    if not made_for.same_weights(given):
        warnings.warn(
            "this adapter was trained on other weights of the same architecture; "
            "expect fewer tokens per forward",
            stacklevel=3,
        )


def merge(adapter: Adapter, network: PreTrainedModel) -> None:
    """Fold a `lora` adapter into the network's weights, [MASK]'s embedding included."""
    with torch.no_grad():
        for name, update in adapter.updates.items():
            weight = network.get_submodule(name).weight
            assert isinstance(weight, Tensor)
            weight += (update.up @ update.down).to(weight)
        embedding = network.get_input_embeddings().weight
        assert isinstance(embedding, Tensor)
        embedding[adapter.record.mask_token_id] = adapter.mask_embedding.to(embedding)
