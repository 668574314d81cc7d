"""The form of a block: what differs between this method, its ablations and block diffusion.

The paper names four gaps between writing one token and filling in a block of masks: the masks
themselves, the attention inside a block, which row predicts a token, and the order of generation.
MARS keeps the first alone; each of the others is a switch here, so that it can be measured. Knows
nothing about tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from marslm.errors import InputError

BlockStart: TypeAlias = Literal["clean", "previous_mask"]
Attention: TypeAlias = Literal["causal", "bidirectional"]
Alignment: TypeAlias = Literal["next", "own"]
Order: TypeAlias = Literal["left_to_right", "confidence"]

_CHOICES = {
    "block_start": get_args(BlockStart),
    "attention": get_args(Attention),
    "alignment": get_args(Alignment),
    "order": get_args(Order),
}


@dataclass(frozen=True)
class Form:
    """How a block is laid out, trained and read; the defaults are MARS.

    block_start: what a block's first token is read from: the last clean token, or the previous
        block's last mask (the authors' code; in decoding it is the last clean token either way).
    attention: whether the rows of a block see those after them too.
    alignment: whether a mask at position p predicts token p+1, as a real token does, or its own.
    order: "confidence" fills a block's cells most confident first; training then shows part of the
        block's real tokens.
    """

    block_start: BlockStart = "clean"
    attention: Attention = "causal"
    alignment: Alignment = "next"
    order: Order = "left_to_right"

    def __post_init__(self) -> None:
        """Raise InputError for a value that does not exist, or that contradicts another."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}: choose {' or '.join(choices)}"
                )
        others = (self.attention, self.alignment, self.order)
        if self.block_start != "clean" and others != ("causal", "next", "left_to_right"):
            raise InputError(
                "block_start previous_mask has no meaning with other forms of a block: leave out "
                "attention, alignment and order"
            )

    @property
    def bidirectional(self) -> bool:
        """Whether the rows of a block see those after them."""
        return self.attention == "bidirectional"

    def window(self, block_size: int) -> int:
        """Return how many rows a decoder puts after the last clean token to read B candidates."""
        own_cells = self.alignment == "own" or self.order == "confidence"
        return block_size if own_cells else block_size - 1

    def trained_rows(self, block_size: int) -> int:
        """Return how many rows follow an anchor in training."""
        if self.block_start == "previous_mask":
            return block_size
        return self.window(block_size)


MARS = Form()
BLOCK_DIFFUSION = Form(attention="bidirectional", alignment="own", order="confidence")
"""The paper's baseline: all three gaps open."""
