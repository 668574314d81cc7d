"""A byte-level tokenizer and a small random model, built in memory.

They stand in for a downloaded checkpoint in the tests and in the quick demo: every part a real one has (chat template,
grouped key/value heads, tied embeddings, an unused row for [MASK], spare rows), at a size two CPU cores can train in a
minute and a half. Knows nothing about the task the model will be trained on, nor about how it is trained.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

PAD, TURN_START, TURN_END, MASK = "<|pad|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
RESERVED = tuple(f"<|reserved_{number}|>" for number in range(4))
ROWS_MULTIPLE = 32

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


def build_tokenizer() -> PreTrainedTokenizerFast:
    byte_symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(byte_symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([PAD, TURN_START, TURN_END, MASK, *RESERVED])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=TURN_END,
        mask_token=MASK,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
