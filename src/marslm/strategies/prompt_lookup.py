"""`prompt_lookup`: guess that what followed the last few tokens before follows them again.

Training-free (Saxena 2023): good where an answer repeats its prompt, as in summaries and edits.
Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, StepSettings
from marslm.strategies.ngrams import NgramIndex
from marslm.strategies.verifying import Verifying


class PromptLookup(Verifying):
    """Look the last tokens up in the text so far."""

    name = "prompt_lookup"

    def __init__(self, facts: EngineFacts) -> None:
        """Need nothing of the engine."""

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return for each request B-1 tokens that followed the same words before, or nothing."""
        return [
            Window(_index(sequence).find(sequence.tokens, each.block - 1).tokens)
            for sequence, each in zip(sequences, settings, strict=True)
        ]


def _index(sequence: Sequence) -> NgramIndex:
    if sequence.state is None:
        sequence.state = NgramIndex()
    index: NgramIndex = sequence.state
    return index
