"""Who takes part in the next step, and with how many tokens.

First come, first served: a waiting request is admitted when a slot is free, and never overtaken.
Knows nothing about logits or strategies.
"""

from __future__ import annotations

from collections import deque

from marslm.runtime.cache import SlotCache
from marslm.runtime.sequence import Sequence


class Scheduler:
    """Waiting and running requests over the slots of one cache."""

    def __init__(self, cache: SlotCache, token_budget: int) -> None:
        """`token_budget`: the most pending tokens that one step feeds."""
        self._cache = cache
        self._token_budget = token_budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        self.waiting.append(sequence)

    def schedule(self) -> list[tuple[Sequence, list[int]]]:
        """Admit what fits; return the requests of this step with the pending tokens to feed.

        Requests that are one token behind come first, so a long prompt never stalls them; prompts
        share what is left of the budget, oldest first.
        """
        while self.waiting and self._cache.free_slots:
            sequence = self.waiting.popleft()
            sequence.slot = self._cache.take_slot()
            self.running.append(sequence)
        budget, chunks = self._token_budget, []
        for sequence in sorted(self.running, key=_pending_prompt):
            chunk = sequence.pending[: max(0, budget)]
            if chunk:
                chunks.append((sequence, chunk))
                budget -= len(chunk)
        return chunks

    def retire(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is, and free its slot."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._cache.release_slot(sequence.slot)
            sequence.slot = None


def _pending_prompt(sequence: Sequence) -> tuple[bool, int]:
    """Sort decoding requests before those that still read their prompt, then by arrival."""
    reads_prompt = sequence.num_cached < sequence.prompt_length - 1
    return reads_prompt, sequence.number
