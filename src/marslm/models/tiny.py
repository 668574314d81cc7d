"""A byte-level tokenizer and a small random model, built in memory.

They stand in for a downloaded checkpoint in the tests and in the quick demo: they have every part
a real one has (a chat template, grouped key/value heads, tied embeddings, an unused row for [MASK],
spare rows) at a size that two CPU cores train in a minute. Knows nothing about the task the model
is trained on, nor about how it is trained.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from marslm.errors import InputError

# Padding has the name that Qwen tokenizers insist on adding if it is missing.
PAD, TURN_START, TURN_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
RESERVED = tuple(f"<|reserved_{number}|>" for number in range(4))

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

# Embedding rows come in multiples of this, with at least one to spare, as in real checkpoints.
ROWS_MULTIPLE = 32

# A model this small and this shortly trained learns about twice as fast from these first weights as
# from the usual 0.02, and faster again with a rotary base near the length of its texts.
FIRST_WEIGHTS_STD = 0.1
ROTARY_BASE = 300.0


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per UTF-8 byte and the special tokens above.

    `decode(encode(text)) == text` for any text that UTF-8 can write. The end of a turn is the
    end-of-sequence token; nothing but [MASK] itself uses `mask_token`.
    """
    byte_symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={s: i for i, s in enumerate(byte_symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, TURN_START, TURN_END, MASK, *RESERVED])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=TURN_END,
        mask_token=MASK,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(
    *,
    architecture: str = "qwen2",
    seed: int = 0,
    hidden_size: int = 64,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate_size: int = 192,
) -> PreTrainedModel:
    """Return a random float32 model for `build_tokenizer()`, the same one for the same arguments.

    Global random state is neither read nor changed. Raises InputError for an unknown architecture
    or for heads that do not divide evenly.
    """
    if architecture not in ARCHITECTURES:
        raise InputError(f"no architecture {architecture!r}: choose one of {_names()}")
    if hidden_size % (2 * heads) or heads % kv_heads:
        raise InputError(
            f"hidden_size {hidden_size}, heads {heads}, kv_heads {kv_heads}: hidden_size must be a "
            "multiple of 2 * heads, and heads one of kv_heads"
        )
    tokenizer = build_tokenizer()
    config_class, model_class = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=(len(tokenizer) // ROWS_MULTIPLE + 1) * ROWS_MULTIPLE,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden_size // heads,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        initializer_range=FIRST_WEIGHTS_STD,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    # Only the CPU's generator is seeded: torch.manual_seed would seed every accelerator's as well.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: PreTrainedModel = model_class(config).to(torch.float32).eval()
    return model


def _names() -> str:
    return ", ".join(ARCHITECTURES)
