"""Log-probabilities as OpenAI shapes them: by objects in chats, by columns in completions.

Knows nothing about where they come from.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marslm.runtime.logprobs import TokenLogprobs


@dataclass(frozen=True)
class Speller:
    """Spells one token, as text and as the bytes of it that the token holds."""

    text: Callable[[int], str]
    octets: Callable[[int], bytes]


def chat_logprobs(found: Sequence[TokenLogprobs], speller: Speller) -> dict[str, Any]:
    """Return one object a token."""
    return {
        "content": [
            {
                **_entry(each.token, each.logprob, speller),
                "top_logprobs": [_entry(token, logprob, speller) for token, logprob in each.top],
            }
            for each in found
        ],
        "refusal": None,
    }


class Offsets:
    """Where the tokens of one answer begin in its text, as they come."""

    def __init__(self) -> None:
        """Start at the text's first character."""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._written = 0

    def of(self, octets: bytes) -> int:
        """Return the place, in characters, of the token that comes next and holds `octets`.

        One that begins within a character has that character's place.
        """
        start = self._written
        self._written += len(self._decoder.decode(octets))
        return start


def completion_logprobs(
    found: Sequence[TokenLogprobs], speller: Speller, offsets: Offsets
) -> dict[str, Any]:
    """Return columns; where tokens are written alike, the likelier one is listed.

    offsets: of the answer, as far as it was listed before.
    """
    return {
        "tokens": [speller.text(each.token) for each in found],
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [
            {speller.text(token): logprob for token, logprob in reversed(each.top)}
            for each in found
        ],
        "text_offset": [offsets.of(speller.octets(each.token)) for each in found],
    }


def _entry(token: int, logprob: float, speller: Speller) -> dict[str, Any]:
    octets = list(speller.octets(token))
    return {"token": speller.text(token), "logprob": logprob, "bytes": octets}
