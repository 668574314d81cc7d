"""`marslm bench decode` with one strategy more: `full-tree`, as where rows cost nothing.

    python recipes/smollm2-135m/full_tree.py --strategies ar,full-tree --adapter ADAPTER --data FILE

Every draft is verified, and B-1 masks stand after each outcome: 25 rows for B = 5, whatever they
cost. So its tokens per forward tell what an adapter's drafts are worth, apart from the machine;
`lossless-tree` feeds only what pays. Takes the same options, and is exact like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from marslm.cli.app import main
from marslm.strategies.base import StepSettings
from marslm.strategies.lossless import Drafting, LosslessTree
from marslm.strategies.registry import register_strategy
from marslm.strategies.shapes import Shape


class FullTree(LosslessTree):
    """All drafts, and the longest run of masks after each outcome."""

    name = "full-tree"

    def shapes(self, states: Sequence[Drafting], settings: Sequence[StepSettings]) -> list[Shape]:
        """Return each request's shape."""
        shapes = []
        for state, each in zip(states, settings, strict=True):
            drafts, masks = len(state.fed.tokens), each.block - 1
            shapes.append(Shape(drafts, (masks,) * (drafts + 1)))
        return shapes


if __name__ == "__main__":
    register_strategy(FullTree.name, FullTree)
    sys.argv[1:1] = ["bench", "decode"]
    main()
