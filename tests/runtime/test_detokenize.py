"""The pieces of a stream joined are the text decoded at once (FAULTS 4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from marslm.models.tiny import build_tokenizer
from marslm.runtime.detokenize import Detokenizer, token_bytes

TOKENIZER = build_tokenizer()


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens end inside characters, as those of real vocabularies do."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    backend.train_from_iterator(["日本語 の 日曜日 에 é è 👍👎 the then them"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def sentence_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that writes a token's leading space only inside a text, as Llama 2's."""
    words = ["▁a", "▁bee", "ee", "▁", "c", ",", "▁日", "本"]
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    vocabulary |= {word: 257 + place for place, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


MERGING, SENTENCES = merging_tokenizer(), sentence_tokenizer()


@st.composite
def chunked(draw: st.DrawFn, tokens: st.SearchStrategy[list[int]]) -> list[list[int]]:
    """Cut a list of tokens into chunks, some of them empty."""
    whole = draw(tokens)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def check(tokenizer: PreTrainedTokenizerFast, chunks: list[list[int]]) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(chunk) for chunk in chunks]
    pieces.append(detokenizer.finish())
    whole = tokenizer.decode(
        [token for chunk in chunks for token in chunk],
        skip_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    assert "".join(pieces) == whole


texts = st.text(max_size=12)


@given(chunked(texts.map(TOKENIZER.encode)))
def test_any_text_in_any_chunks(chunks: list[list[int]]) -> None:
    check(TOKENIZER, chunks)


@given(chunked(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=16)))
def test_any_bytes_and_special_tokens_in_any_chunks(chunks: list[list[int]]) -> None:
    """Invalid UTF-8 too, and special tokens in the middle of a character."""
    check(TOKENIZER, chunks)


@given(chunked(st.lists(st.integers(0, len(MERGING) - 1), max_size=16)))
def test_tokens_that_end_inside_characters(chunks: list[list[int]]) -> None:
    check(MERGING, chunks)


@given(chunked(st.lists(st.integers(257, len(SENTENCES) - 1), max_size=12)))
def test_tokens_that_lose_their_space_at_the_start_of_a_text(chunks: list[list[int]]) -> None:
    check(SENTENCES, chunks)


@given(chunked(st.text(alphabet="a é日👍", max_size=6).map(lambda t: list(t.encode()))))
def test_byte_fallback(chunks: list[list[int]]) -> None:
    """Characters outside the vocabulary, one byte a token."""
    check(SENTENCES, [[byte + 1 for byte in chunk] for chunk in chunks])


@pytest.mark.parametrize("text", ["é", "日", "👍"])
def test_a_character_comes_out_whole_and_at_once(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.add([token]) for token in tokens] == [""] * (len(tokens) - 1) + [text]
    assert detokenizer.finish() == ""


def test_several_characters_in_one_chunk_are_not_doubled() -> None:
    tokens = TOKENIZER.encode("日本語")
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.add(tokens[:4]) == ""
    assert detokenizer.add(tokens[4:]) == "日本語"


def test_text_is_given_out_as_soon_as_it_is_complete() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.add([token]) for token in TOKENIZER.encode("abc")] == ["a", "b", "c"]


def test_half_a_character_at_the_end_is_shown_as_decoding_shows_it() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.add(TOKENIZER.encode("a日")[:2]) == ""
    assert detokenizer.finish() == "a\N{REPLACEMENT CHARACTER}"


def test_broken_bytes_after_a_whole_character_do_not_take_it_back() -> None:
    """Decoding a run of bytes at once would show all of them as broken, this one's too."""
    detokenizer = Detokenizer(SENTENCES)
    run = [byte + 1 for byte in "日".encode()] + [0xE6 + 1]
    assert "".join(detokenizer.add([token]) for token in run) == "日"
    assert detokenizer.finish() == 3 * "\N{REPLACEMENT CHARACTER}"
    assert SENTENCES.decode(run) == 4 * "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("tokenizer", [TOKENIZER, MERGING], ids=["bytes", "merged"])
@given(text=texts)
def test_the_bytes_of_tokens_are_those_of_the_text(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    tokens = tokenizer.encode(text)
    assert b"".join(token_bytes(tokenizer, token) for token in tokens) == text.encode()


def test_the_bytes_of_a_byte_fallback() -> None:
    parts = [SENTENCES.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "日é".encode()]
    assert b"".join(token_bytes(SENTENCES, token) for token in parts) == "日é".encode()
    assert token_bytes(SENTENCES, SENTENCES.convert_tokens_to_ids("本")) == "本".encode()
