"""Which row becomes [MASK], and which rows may not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config

from marslm.errors import InputError
from marslm.models.mask_token import check_mask_token, choose_mask_token


def tokenizer_with(
    special: Sequence[str], template: str = "", **roles: str
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of ten words and then the special tokens."""
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(10)}, unk_token="w0"))
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=template or None, **roles
    )


def config(rows: int) -> Qwen2Config:
    return Qwen2Config(vocab_size=rows)


def test_a_token_named_mask_comes_first() -> None:
    tokenizer = tokenizer_with(["<end>", "<|reserved_0|>", "<|MASK|>"], eos_token="<end>")
    assert choose_mask_token(tokenizer, config(64)) == 12


def test_then_the_first_row_past_the_tokenizer() -> None:
    """Qwen2.5 has 151665 tokens and 151936 rows: the paper's [MASK] is 151665."""
    tokenizer = tokenizer_with(["<end>", "<|reserved_0|>"], eos_token="<end>")
    assert len(tokenizer) == 12
    assert choose_mask_token(tokenizer, config(64)) == 12


def test_then_the_last_reserved_token() -> None:
    tokenizer = tokenizer_with(
        ["<end>", "<|reserved_0|>", "<|reserved_1|>", "<tool>"], eos_token="<end>"
    )
    assert choose_mask_token(tokenizer, config(14)) == 12


def test_then_any_special_token_without_a_use() -> None:
    tokenizer = tokenizer_with(["<end>", "<repo>", "<file>"], eos_token="<end>")
    assert choose_mask_token(tokenizer, config(13)) == 12


def test_a_token_that_the_template_writes_is_in_use() -> None:
    tokenizer = tokenizer_with(
        ["<end>", "<repo>", "<file>"], "<file>{{ messages }}", eos_token="<end>"
    )
    assert choose_mask_token(tokenizer, config(13)) == 11


def test_a_mask_role_does_not_spoil_the_choice() -> None:
    tokenizer = tokenizer_with(["<end>", "<mask>"], eos_token="<end>", mask_token="<mask>")
    assert choose_mask_token(tokenizer, config(12)) == 11


def test_ordinary_words_are_never_taken() -> None:
    backend = Tokenizer(models.WordLevel({"unmask": 0, "extra": 1, "<end>": 2}, unk_token="extra"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    with pytest.raises(InputError, match=r"no unused embedding row for .*--mask-token-id"):
        choose_mask_token(tokenizer, config(len(tokenizer)))


def test_none_is_left() -> None:
    tokenizer = tokenizer_with(
        ["<end>", "<start>", "<pad>"], "<start>", eos_token="<end>", pad_token="<pad>"
    )
    with pytest.raises(InputError, match="name one with mask_token_id"):
        choose_mask_token(tokenizer, config(13))


@pytest.mark.parametrize("role", ["bos", "eos", "pad", "unk"])
def test_a_token_with_a_role_cannot_be_mask(role: str) -> None:
    tokenizer = tokenizer_with(["<it>", "<free>"], **{f"{role}_token": "<it>"})
    with pytest.raises(InputError, match=f"mask token id 10 is the {role} token"):
        check_mask_token(10, tokenizer, config(12))
    check_mask_token(11, tokenizer, config(12))


@pytest.mark.parametrize("mask", [-1, 12, 500])
def test_a_row_that_does_not_exist(mask: int) -> None:
    with pytest.raises(InputError, match=f"{mask} is outside the embedding's 12 rows"):
        check_mask_token(mask, tokenizer_with(["<it>"]), config(12))
