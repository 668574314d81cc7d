"""`prompt_lookup`: guess that what followed the last few tokens before follows them again.

Training-free (Saxena 2023): good where an answer repeats its prompt, as in summaries and edits.
Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, StepSettings
from marslm.strategies.verifying import Verifying

LONGEST_MATCH = 3
"""Tokens that are looked up; if they are new, fewer are."""


@dataclass
class _Index:
    """Where each run of up to LONGEST_MATCH tokens was last followed by another token."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    length: int = 0

    def read(self, tokens: list[int]) -> None:
        """Take in what was written since; the last token is not followed by anything yet."""
        for end in range(max(1, self.length), len(tokens)):
            for size in range(1, min(LONGEST_MATCH, end) + 1):
                self.ends[tuple(tokens[end - size : end])] = end
        self.length = len(tokens)

    def continuation(self, tokens: list[int], count: int) -> list[int]:
        """Return up to `count` tokens that once followed the longest known end of `tokens`."""
        for size in range(min(LONGEST_MATCH, len(tokens)), 0, -1):
            end = self.ends.get(tuple(tokens[len(tokens) - size :]))
            if end is not None:
                return tokens[end : end + count]
        return []


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
            Window(self._look_up(sequence, each.block - 1))
            for sequence, each in zip(sequences, settings, strict=True)
        ]

    def _look_up(self, sequence: Sequence, count: int) -> list[int]:
        index: _Index = sequence.state or _Index()
        sequence.state = index
        index.read(sequence.tokens)
        return index.continuation(sequence.tokens, count)
