"""Who may see whom: the one place that defines the attention mask (METHOD section 2).

`may_attend` is the rule. `dense_mask` evaluates it for SDPA, `flex_mask` wraps it for
FlexAttention, and `window_mask` is the same rule for a decoder whose rows sit in cache cells, which
`bit_mask` evaluates from integers alone, in shapes that do not depend on the requests.

Knows nothing about models; draws no masks (the golden pictures in tests do).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marslm.core.streams import CLEAN, Rows


def may_attend(query: Rows, key: Rows, *, bidirectional: bool = False) -> Tensor:
    """Return, elementwise with broadcasting, whether `query` may see `key` (bool).

    clean -> clean: j <= i. noisy -> clean: up to the block's anchor. noisy -> noisy: own block,
    j <= i, or all of it if `bidirectional` (block diffusion, and the paper's ablation). Clean rows
    never see noisy ones, and no row sees another text or padding; padding sees padding so that its
    softmax stays finite.
    """
    same_text = query.document == key.document
    clean_past = (key.block == CLEAN) & (key.position <= query.anchor)
    own_block = key.block == query.block
    if bidirectional:
        own_block = own_block & ((key.block != CLEAN) | (key.position <= query.position))
    else:
        own_block = own_block & (key.position <= query.position)
    return same_text & (clean_past | own_block)


def dense_mask(queries: Rows, keys: Rows, *, bidirectional: bool = False) -> Tensor:
    """Return the mask of `queries` [..., Q] over `keys` [..., K] as bool [..., 1, Q, K]."""
    seen = may_attend(queries[..., :, None], keys[..., None, :], bidirectional=bidirectional)
    return seen.unsqueeze(-3)


def flex_mask(
    queries: Rows, keys: Rows, *, bidirectional: bool = False
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the same mask as a FlexAttention `mask_mod` for `create_block_mask`.

    queries, keys: rows of shape [batch, Q] and [batch, K].
    """

    def mask_mod(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return may_attend(queries[batch, query], keys[batch, key], bidirectional=bidirectional)

    return mask_mod


@dataclass(frozen=True)
class Tree:
    """A tree of decoder rows inside a mask [..., 1, Q, keys].

    place: its request's index. row: its first row. cell: its first row's cell. parents: for each
    row the tree row it follows, an earlier one, or -1 for the text before the tree.
    """

    place: int
    row: int
    cell: int
    parents: Sequence[int]


def window_mask(seen: Tensor, keys: int, trees: Sequence[Tree] = ()) -> Tensor:
    """Return the mask of decoder rows over cache cells 0..keys-1, bool [S, 1, Q, keys].

    A decoder lays a request's clean tokens, drafts and masks into consecutive cells, so the rule of
    `may_attend` becomes a number: row [s, q] sees the first `seen` [S, Q] cells. In text order that
    is its own cell and those before it, in a bidirectional window all up to the window's end. A row
    of a tree sees those before the tree, its ancestors and itself.
    """
    mask = (torch.arange(keys, device=seen.device) < seen[..., None]).unsqueeze(-3)
    for tree in trees:
        size = len(tree.parents)
        block = mask[tree.place, 0, tree.row : tree.row + size, tree.cell : tree.cell + size]
        block.copy_(_ancestors(tree.parents))
    return mask


def bit_mask(first: Tensor, sees: Tensor, keys: int) -> Tensor:
    """Return the mask of decoder rows over cache cells 0..keys-1, bool [S, 1, Q, keys].

    It is `window_mask` for requests of few rows, as one expression over integers that a graph can
    replay. first: [S], the cell of a request's first row; all its rows see the cells before it.
    sees: [S, Q], bit j of row q says whether it sees the request's row j, for j < 62.
    """
    distance = torch.arange(keys, device=first.device) - first[:, None]
    own = (sees[..., None] >> distance.clamp(0, 62)[:, None]) & 1
    return ((distance < 0)[:, None] | own.bool()).unsqueeze(-3)


def _ancestors(parents: Sequence[int]) -> Tensor:
    """Return which rows of a tree each row sees, bool [W, W]: its ancestors and itself."""
    sees = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            sees[row] |= sees[parent]
    return sees
