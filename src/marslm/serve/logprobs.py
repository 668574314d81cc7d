"""Log-probabilities as OpenAI shapes them: by objects in chats, by columns in completions.

Knows nothing about where they come from.
"""

from __future__ import annotations

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


def completion_logprobs(found: Sequence[TokenLogprobs], speller: Speller) -> dict[str, Any]:
    """Return columns; where tokens are written alike, the likelier one is listed."""
    tokens = [speller.text(each.token) for each in found]
    starts = [sum(map(len, tokens[:index])) for index in range(len(tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [
            {speller.text(token): logprob for token, logprob in reversed(each.top)}
            for each in found
        ],
        "text_offset": starts,
    }


def _entry(token: int, logprob: float, speller: Speller) -> dict[str, Any]:
    octets = list(speller.octets(token))
    return {"token": speller.text(token), "logprob": logprob, "bytes": octets}
