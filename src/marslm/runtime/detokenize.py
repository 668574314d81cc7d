"""Tokens to text, as they come.

Several tokens may arrive at once and a character may be split over two of them, so text is given
out only when it can no longer change. Knows nothing about requests or why a text ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"

_FALLBACK = re.compile("<0x([0-9A-F]{2})>")
"""How a byte-fallback vocabulary names a byte."""


def _byte_symbols() -> dict[str, int]:
    """Return the byte that each symbol of a byte-level vocabulary stands for.

    Bytes that are printable in Latin-1 stand for themselves, and the others, in order, are the
    characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    shown = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shown


_BYTES = _byte_symbols()


def token_bytes(tokenizer: PreTrainedTokenizerBase, token: int) -> bytes:
    """Return a token's bytes: its text's in UTF-8, or its own where it is part of a character."""
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    if _INCOMPLETE not in text:
        return text.encode()
    symbols = str(tokenizer.convert_ids_to_tokens(token))
    if found := _FALLBACK.fullmatch(symbols):
        return bytes.fromhex(found[1])
    if all(symbol in _BYTES for symbol in symbols):
        return bytes(_BYTES[symbol] for symbol in symbols)
    return text.encode()


class Detokenizer:
    """Decodes a growing list of tokens; the pieces joined equal decoding all of them at once.

    With one exception: a byte-fallback tokenizer (Llama 2's, Gemma's) shows every byte of a run as
    broken once any of it is, also the whole characters before. What is out stays out here: those
    characters remain, and as much follows as makes the text as long as decoding it at once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Start with no tokens."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        # Text up to `_given` is out. Decoding restarts at `_context`, a few tokens before it, since
        # some tokenizers write a token differently at the start of a text.
        self._context = 0
        self._given = 0

    def add(self, tokens: Sequence[int]) -> str:
        """Append `tokens` and return the text that they complete, perhaps none."""
        self._tokens.extend(tokens)
        return "" if self._pending_text().endswith(_INCOMPLETE) else self._give()

    def finish(self) -> str:
        """Return what is still held back: an incomplete character, as decoding shows it."""
        return self._give()

    def _give(self) -> str:
        text = self._pending_text()
        if text:
            self._context, self._given = self._given, len(self._tokens)
        return text

    def _pending_text(self) -> str:
        before = self._decode(self._tokens[self._context : self._given])
        return self._decode(self._tokens[self._context :])[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text
