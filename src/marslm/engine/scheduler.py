"""Who takes part in the next step, and with how many tokens.

First come, first served: a waiting request is admitted when a slot is free, and never overtaken.
Knows nothing about logits or strategies.
"""

from __future__ import annotations

from collections import deque

from marslm.engine.prefixes import Prefixes
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
        self._prefixes = Prefixes()

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        self.waiting.append(sequence)

    def schedule(self) -> list[tuple[Sequence, list[int]]]:
        """Admit what fits; return the requests of this step with the pending tokens to feed.

        Requests that are one token behind come first, so a long prompt never stalls them; prompts
        share what is left of the budget, oldest first.
        """
        while self.waiting and self._cache.free_slots:
            self._admit(self.waiting.popleft())
        budget, chunks = self._token_budget, []
        for sequence in sorted(self.running, key=_pending_prompt):
            chunk = sequence.pending[: max(0, budget)]
            if chunk:
                chunks.append((sequence, chunk))
                budget -= len(chunk)
        return chunks

    def _admit(self, sequence: Sequence) -> None:
        """Give a request the lowest free slot, with what the cache has of its prompt."""
        source, tokens = self._prefixes.longest(sequence.tokens, self.running)
        sequence.slot = self._cache.take_slot()
        self._prefixes.take(sequence.slot)
        self._cache.copy(source, sequence.slot, tokens)
        sequence.advance(tokens)
        self.running.append(sequence)

    def retire(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is, and free its slot."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._prefixes.keep(sequence.slot, sequence)
            self._cache.release_slot(sequence.slot)
            sequence.slot = None
        self._check()

    def _check(self) -> None:
        """Every slot is free or held by one running request; none leaks."""
        held = {sequence.slot for sequence in self.running}
        assert None not in held
        assert len(held) == len(self.running)
        assert self._cache.free_slots + len(held) == self._cache.slots


def _pending_prompt(sequence: Sequence) -> tuple[bool, int]:
    """Sort decoding requests before those that still read their prompt, then by arrival."""
    reads_prompt = sequence.num_cached < sequence.prompt_length - 1
    return reads_prompt, sequence.number
