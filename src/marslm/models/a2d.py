"""The authors' released checkpoints, as the stock architecture that they are.

Their `config.json` names a model type of their own, such as "a2d-qwen2", and code to run; the
weights are Qwen2's or Llama's, name for name, so neither is needed. They were trained with
`block_start` "previous_mask" (docs/paper_to_code.md). Knows nothing about training.
"""

from __future__ import annotations

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from marslm.models.record import MarsRecord, marks_of

_PREFIX = "a2d-"
_BLOCK = 4
"""B where a checkpoint does not say: the paper's smallest, which every larger one can decode."""


def read_config(place: str) -> PreTrainedConfig:
    """Return the configuration at `place`, the authors' as that of the architecture beneath."""
    raw, _ = PreTrainedConfig.get_config_dict(place)
    kind = str(raw.get("model_type", ""))
    if not kind.startswith(_PREFIX):
        config: PreTrainedConfig = AutoConfig.from_pretrained(place)
        return config
    for name in ("model_type", "auto_map", "architectures"):
        raw.pop(name, None)
    stock: PreTrainedConfig = AutoConfig.for_model(kind.removeprefix(_PREFIX), **raw)
    stock.mars_block_size = raw.get("block_size", _BLOCK)
    return stock


def authors_record(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, mask_token_id: int
) -> MarsRecord | None:
    """Return how one of the authors' checkpoints was trained, None for any other model."""
    block_size = getattr(network.config, "mars_block_size", None)
    if block_size is None:
        return None
    return MarsRecord(
        mode="full",
        mask_token_id=mask_token_id,
        block_size=int(block_size),
        base=marks_of(network, tokenizer),
        block_start="previous_mask",
    )
