"""Where a text has said the last few tokens before, and what followed them.

An index of one request that grows with its text, so that a look-up takes the same time however long
the text is. Knows nothing about models or windows.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import NamedTuple

LONGEST_KEY = 3
"""Tokens that are looked up; if they are new, fewer are."""

LONGEST_MATCH = 8
"""How far back a match is followed, to tell long ones from short ones."""


class Match(NamedTuple):
    """What followed the last tokens before. length: how many of them are the same there."""

    tokens: ListOf[int] = ()
    length: int = 0


_NONE = Match()


class NgramIndex:
    """Where each run of up to LONGEST_KEY tokens was last followed by another token."""

    def __init__(self) -> None:
        """Have read nothing."""
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = 1  # what ends before here is known; the first token's end is the first

    def find(self, tokens: list[int], count: int) -> Match:
        """Return up to `count` tokens that followed the longest known end of a text.

        Of equal matches the last one counts. tokens: all of the text, longer than at the last call
        or the same.
        """
        self._take_in(tokens)
        for size in range(min(LONGEST_KEY, len(tokens)), 0, -1):
            end = self._ends.get(tuple(tokens[-size:]))
            if end is not None:
                return Match(tokens[end : end + count], _shared(tokens, end, size))
        return _NONE

    def _take_in(self, tokens: list[int]) -> None:
        """Note all ends but the last, which is not followed by anything yet."""
        ends = self._ends
        for end in range(self._read, len(tokens)):
            for start in range(max(0, end - LONGEST_KEY), end):
                ends[tuple(tokens[start:end])] = end
        self._read = max(self._read, len(tokens))


def _shared(tokens: list[int], end: int, length: int) -> int:
    """Return how many tokens before `end` equal the last ones; `length` of them are known to."""
    if length < LONGEST_KEY:
        return length
    limit = min(LONGEST_MATCH, end)
    while length < limit and tokens[end - length - 1] == tokens[-length - 1]:
        length += 1
    return length
