"""Prompts that begin as a text whose keys and values are in the cache are not computed again.

A slot keeps its cells when its request ends, so what it holds is known until somebody else takes
it. Only real tokens count: cells past a request's cursor, those of masks and wrong drafts among
them, are never reused. Knows nothing about requests' answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from itertools import takewhile

from marslm.runtime.sequence import Sequence


class Prefixes:
    """The texts that the cells of slots hold until a request writes to them."""

    def __init__(self) -> None:
        """Know of none."""
        self._texts: dict[int, list[int]] = {}

    def keep(self, slot: int, sequence: Sequence) -> None:
        """Remember what a slot holds whose request ends."""
        self._texts[slot] = sequence.tokens[: sequence.num_cached]

    def take(self, slot: int) -> None:
        """Forget what a slot holds, since its cells will be written to."""
        self._texts.pop(slot, None)

    def longest(self, prompt: ListOf[int], running: Iterable[Sequence]) -> tuple[int, int]:
        """Return (slot, tokens) of the longest beginning of `prompt` in the cache, (0, 0) if none.

        One token of the prompt is always left to feed.
        """
        texts = dict(self._texts)
        for sequence in running:
            assert sequence.slot is not None
            if sequence.num_cached:
                texts[sequence.slot] = sequence.tokens[: sequence.num_cached]
        found = {slot: shared(prompt[:-1], text) for slot, text in texts.items()}
        slot = max(found, key=lambda each: found[each], default=0)
        return slot, found.get(slot, 0)


def shared(first: ListOf[int], second: ListOf[int]) -> int:
    """Return how many leading tokens two texts have in common."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
