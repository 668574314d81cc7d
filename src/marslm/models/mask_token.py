"""Which row of the embedding serves as [MASK] (METHOD section 2).

[MASK] is a row that exists and that no text uses, so embeddings are never resized: with tied heads
that breaks training and saving. Knows nothing about how the row is trained.
"""

from __future__ import annotations

import re

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from marslm.errors import InputError

_NAMED_MASK = re.compile(r"mask", re.IGNORECASE)
_NAMED_UNUSED = re.compile(r"reserved|unused|extra|placeholder|empty|dummy", re.IGNORECASE)


def choose_mask_token(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> int:
    """Return the id of [MASK] for a model that has none recorded.

    In this order: a special token named mask; the first embedding row past the tokenizer's own
    (Qwen2.5: 151665, the paper's); a special token that no template uses, named reserved or unused
    if there is one. Raises InputError when there is none of these.
    """
    spare = _spare_special_tokens(tokenizer)
    named = [i for i, text in spare.items() if _NAMED_MASK.search(text)]
    if named:
        return named[0]
    if len(tokenizer) < config.vocab_size:
        return len(tokenizer)
    unused = [i for i, text in spare.items() if _NAMED_UNUSED.search(text)] or list(spare)
    if unused:
        return unused[-1]
    raise InputError(
        "this model has no unused embedding row for [MASK]; name one with mask_token_id "
        "(--mask-token-id), a token that your texts never contain"
    )


def check_mask_token(
    mask_id: int, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
) -> None:
    """Raise InputError unless `mask_id` is an existing row that does not end or pad texts."""
    if not 0 <= mask_id < config.vocab_size:
        raise InputError(
            f"mask token id {mask_id} is outside the embedding's {config.vocab_size} rows; "
            f"choose one from 0 to {config.vocab_size - 1}"
        )
    for role in ("bos", "eos", "pad", "unk"):
        if mask_id == getattr(tokenizer, f"{role}_token_id"):
            raise InputError(f"mask token id {mask_id} is the {role} token; choose an unused one")


def _spare_special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return the special tokens, by ascending id, that neither a role nor the template uses."""
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    roles.add(tokenizer.unk_token_id)
    template = str(tokenizer.chat_template or "")
    return {
        token_id: token.content
        for token_id, token in sorted(tokenizer.added_tokens_decoder.items())
        if token.special and token_id not in roles and token.content not in template
    }
