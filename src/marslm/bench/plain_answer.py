"""What another engine wrote, as an answer like ours: one token a forward.

Knows nothing about how it was written.
"""

from __future__ import annotations

from marslm.engine.api import Answer
from marslm.models.loading import MarsModel


def plain_answer(
    model: MarsModel, prompt: list[int], new: list[int], ends: frozenset[int]
) -> Answer:
    """Return `new`, which follows `prompt` and may close with one of the tokens in `ends`."""
    finished = bool(new) and new[-1] in ends
    written = new[:-1] if finished else new
    return Answer(
        prompt_ids=prompt,
        ids=new,
        text=str(model.tokenizer.decode(written, skip_special_tokens=True)),
        runs=[1] * len(new),
        decode_rows=len(new) - 1,
        finish_reason="stop" if finished else "length",
    )
