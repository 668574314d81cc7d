"""Models with the shapes of Qwen2.5 and random weights, made where they are used.

For measuring speed, which does not depend on what weights say. Knows nothing about measuring.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.models.tiny import build_tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 288,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "0.5b": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "7b": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
"""Qwen2.5-0.5B and 7B, and one for tests."""


def check_shape(name: str) -> None:
    """Raise InputError for a shape that is not known."""
    if name not in SHAPES:
        raise InputError(f"unknown model shape {name!r}: choose from {', '.join(SHAPES)}")


def random_model(shape: str, device: torch.device, dtype: torch.dtype) -> MarsModel:
    """Return a random model, the same for the same arguments; it never lies in host memory.

    Its tokenizer only names [MASK]. Random state is neither read nor changed.
    """
    check_shape(shape)
    tokenizer = build_tokenizer()
    config = Qwen2Config(
        **SHAPES[shape],
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    own = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=own), torch.device(device):
        torch.manual_seed(0)
        network: PreTrainedModel = Qwen2ForCausalLM._from_config(config, dtype=dtype).eval()  # type: ignore[no-untyped-call]
    network.requires_grad_(False)
    return MarsModel(shape, network, tokenizer, tokenizer.mask_token_id)
