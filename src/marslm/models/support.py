"""Which models the decoder and the training batch can serve, checked when a model is loaded.

Refusing early is the point: an unsupported attention type otherwise fails deep inside, or not at
all and writes garbage. Knows nothing about weights.
"""

from __future__ import annotations

from transformers import PreTrainedConfig

from marslm.errors import InputError

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

_WHAT_WORKS = "use a Llama-, Qwen2- or Qwen3-style model with full attention"


def check_supported(config: PreTrainedConfig, name: str) -> None:
    """Raise InputError, naming the reason and what works, unless `config` can be served."""
    for reason in _reasons_against(config):
        raise InputError(f"{name} is not supported: {reason}; {_WHAT_WORKS}")


def _reasons_against(config: PreTrainedConfig) -> list[str]:
    if config.model_type not in MODEL_TYPES:
        return [f"its model type is {config.model_type!r}"]
    reasons = []
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        others = ", ".join(sorted(layer_types - {"full_attention"}))
        reasons.append(f"some of its layers use {others}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        reasons.append(f"its rotary embedding is {rope!r}, which changes with the length")
    if config.hidden_act != "silu":
        reasons.append(f"its activation is {config.hidden_act!r}, not silu")
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        reasons.append("its weights are quantised")
    return reasons
