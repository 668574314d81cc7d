"""Log-probabilities as OpenAI shapes them: by objects in chats, by columns in completions.

Knows nothing about where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marslm.runtime.logprobs import TokenLogprobs


def chat_logprobs(found: Sequence[TokenLogprobs], text: Callable[[int], str]) -> dict[str, Any]:
    """Return one object a token; `text` writes a token."""
    return {
        "content": [
            {
                **_entry(text(each.token), each.logprob),
                "top_logprobs": [_entry(text(token), logprob) for token, logprob in each.top],
            }
            for each in found
        ],
        "refusal": None,
    }


def completion_logprobs(
    found: Sequence[TokenLogprobs], text: Callable[[int], str]
) -> dict[str, Any]:
    """Return columns; where tokens are written alike, the likelier one is listed."""
    tokens = [text(each.token) for each in found]
    starts = [sum(map(len, tokens[:index])) for index in range(len(tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [
            {text(token): logprob for token, logprob in reversed(each.top)} for each in found
        ],
        "text_offset": starts,
    }


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
