"""Who takes part in the next step, and with how many tokens.

First come, first served: a waiting request is admitted when a slot is free, and never overtaken. A
request whose prompt begins as another's that is being read waits for that beginning. Knows nothing
about logits or strategies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as ListOf

from marslm.engine.prefixes import Prefixes, shared
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
            sequence = self.waiting.popleft()
            sequence.slot = self._cache.take_slot()
            self.running.append(sequence)
        budget = self._token_budget
        chunks: list[tuple[Sequence, list[int]]] = []
        for sequence in sorted(self.running, key=_pending_prompt):
            if budget <= 0:
                break
            if sequence.num_cached or self._begin(sequence, chunks):
                chunk = sequence.pending[:budget]
                chunks.append((sequence, chunk))
                budget -= len(chunk)
        return chunks

    def _begin(self, sequence: Sequence, chunks: ListOf[tuple[Sequence, list[int]]]) -> bool:
        """Give a request what the cache has of its prompt.

        False if it should wait a step: when others of this step, `chunks`, are about to compute
        more than half of what it lacks.
        """
        source, tokens = self._prefixes.longest(sequence.tokens, self.running)
        coming = max(
            (
                shared(sequence.tokens[:-1], other.tokens[: other.num_cached + len(chunk)])
                for other, chunk in chunks
            ),
            default=0,
        )
        if 2 * (coming - tokens) > len(sequence.tokens) - tokens:
            return False
        assert sequence.slot is not None
        self._prefixes.take(sequence.slot)
        self._cache.copy(source, sequence.slot, tokens)
        sequence.advance(tokens)
        return True

    def retire(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is, and free its slot."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            if sequence.num_cached:  # or the slot still holds what it held before
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
