"""`mars.json`: what a decoder must know about trained weights, saved beside them.

It holds the [MASK] id, the block size B, the form of a block, the mode, and marks of the base
model, so that an adapter is never put on a model that it was not made for. Knows nothing about
tensors on disk.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from marslm import files
from marslm.core.forms import MARS, Alignment, Attention, BlockStart, Form, Order
from marslm.errors import InputError

FILE_NAME = "mars.json"
_SAMPLES = 32

Mode: TypeAlias = Literal["full", "lora", "mask-only", "medusa"]


@dataclass(frozen=True)
class BaseMarks:
    """Marks of the model that was trained.

    architecture and tokenizer must match when an adapter is loaded; weights should.
    """

    architecture: str
    tokenizer: str
    weights: tuple[float, ...]

    def same_weights(self, other: BaseMarks) -> bool:
        """Return whether the weights agree to within the rounding of a narrower dtype."""
        pairs = zip(self.weights, other.weights, strict=False)
        close = all(abs(a - b) <= 0.01 * max(abs(a), abs(b)) for a, b in pairs)
        return len(self.weights) == len(other.weights) and close


@dataclass(frozen=True)
class MarsRecord:
    """The contents of `mars.json`.

    block_size: B, the candidates of one step. block_start, attention, alignment, order: the `form`
    of a block, which is also how it has to be decoded. training: what the weights were trained on,
    for people; nothing reads it.
    """

    mode: Mode
    mask_token_id: int
    block_size: int
    base: BaseMarks
    block_start: BlockStart = MARS.block_start
    attention: Attention = MARS.attention
    alignment: Alignment = MARS.alignment
    order: Order = MARS.order
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def form(self) -> Form:
        """The form of a block."""
        return Form(self.block_start, self.attention, self.alignment, self.order)

    def save(self, folder: Path) -> None:
        """Write the record into `folder` atomically."""
        files.write_text(folder / FILE_NAME, json.dumps(asdict(self), indent=1) + "\n")


def read_record(folder: Path) -> MarsRecord:
    """Read the record in `folder`; InputError if it is missing or not one of ours."""
    path = folder / FILE_NAME
    if not path.exists():
        raise InputError(f"{folder} has no {FILE_NAME}; give a folder that `marslm tune` wrote")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        base = {**raw["base"], "weights": tuple(raw["base"]["weights"])}
        record = MarsRecord(**{**raw, "base": BaseMarks(**base)})
        if not (type(record.mask_token_id) is type(record.block_size) is int):
            raise TypeError("mask_token_id and block_size must be whole numbers")
        if record.mode not in get_args(Mode):
            raise TypeError(f"mode {record.mode!r}")
        _ = record.form  # refuses what it does not know
        return record
    except (json.JSONDecodeError, TypeError, KeyError, InputError) as error:
        raise InputError(f"{path} cannot be read ({error}); train again or restore it") from error


def marks_of(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> BaseMarks:
    """Return the marks of a model in memory; the weights' are values sampled from matrices."""
    config = network.config
    shape = {
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
    }
    return BaseMarks(
        architecture=" ".join(f"{key}={value}" for key, value in shape.items()),
        tokenizer=_digest(json.dumps(sorted(tokenizer.get_vocab().items()))),
        weights=tuple(_sample(network)),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sample(network: PreTrainedModel) -> list[float]:
    """Return `_SAMPLES` values, each from the middle of another matrix, spread over the network."""
    matrices = [w for _, w in sorted(network.named_parameters()) if w.dim() > 1]
    step = max(1, len(matrices) // _SAMPLES)
    middles = [w.detach()[w.shape[0] // 2, w.shape[1] // 2] for w in matrices[::step]]
    return [float(f"{value.item():.4g}") for value in middles[:_SAMPLES]]
