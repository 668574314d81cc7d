"""What a request feeds into a step after its pending tokens: drafts, masks, both or nothing.

Knows nothing about what the entries mean or which of them will be kept.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Entries that follow a request's pending tokens; entry i sits i cells after the last of them.

    tokens: one id for each entry. parents: None for a chain, in which each entry follows the one
    before it; else a tree: each entry's parent, an earlier entry or -1 for the last pending token.
    An entry sees the text, its ancestors and itself, and its rotary position is its depth.
    bidirectional: every entry of a chain sees all of the window.
    """

    tokens: ListOf[int] = ()
    parents: ListOf[int] | None = None
    bidirectional: bool = False

    def __post_init__(self) -> None:
        """Check the shape, which only a faulty strategy gets wrong."""
        if self.parents is not None:
            assert not self.bidirectional, "a tree has no order to see both ways in"
            assert len(self.parents) == len(self.tokens)
            assert all(-1 <= parent < entry for entry, parent in enumerate(self.parents))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> list[int]:
        """How far behind the first place after the pending tokens each entry stands in the text."""
        if self.parents is None:
            return list(range(len(self.tokens)))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    def starts_with_chain(self, length: int) -> bool:
        """Whether the first `length` entries follow one another, as kept ones must."""
        if length > len(self.tokens):
            return False
        return self.parents is None or list(self.parents[:length]) == list(range(-1, length - 1))

    def cut(self, length: int) -> Window:
        """Return the window of the first `length` entries."""
        if length >= len(self.tokens):
            return self
        parents = None if self.parents is None else self.parents[:length]
        return Window(self.tokens[:length], parents, self.bidirectional)
