"""Lossless acceptance: keep the drafts that plain decoding would have written (METHOD section 3).

Attention is strictly causal, so the row at each draft is exactly the one-token row for the text up
to that draft; comparing costs nothing. Knows nothing about where drafts come from.
"""

from __future__ import annotations

from collections.abc import Sequence


def matching_prefix(drafts: Sequence[int], choices: Sequence[int]) -> int:
    """Return how many leading drafts equal the model's own choices.

    choices[i] is what one-token decoding emits where drafts[i] stands. `choices` is one longer than
    `drafts`: the entry after the last kept draft is the step's free token.
    """
    for index, (draft, choice) in enumerate(zip(drafts, choices, strict=False)):
        if draft != choice:
            return index
    return len(drafts)
