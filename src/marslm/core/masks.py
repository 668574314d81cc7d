"""Who may see whom: the one place that defines the attention mask (METHOD section 2).

`may_attend` is the rule. `dense_mask` evaluates it for SDPA, `flex_mask` wraps it for
FlexAttention, and `window_mask` is the same rule for a decoder whose rows sit in cache cells in
text order.

Knows nothing about models; draws no masks (the golden pictures in tests do).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from marslm.core.streams import CLEAN, Rows


def may_attend(query: Rows, key: Rows) -> Tensor:
    """Return, elementwise with broadcasting, whether `query` may see `key` (bool).

    clean -> clean: j <= i. noisy -> clean: up to the block's anchor. noisy -> noisy: own block,
    j <= i. Clean rows never see noisy ones, and no row sees another text or padding; padding sees
    padding so that its softmax stays finite.
    """
    same_text = query.document == key.document
    clean_past = (key.block == CLEAN) & (key.position <= query.anchor)
    own_block_past = (key.block == query.block) & (key.position <= query.position)
    return same_text & (clean_past | own_block_past)


def dense_mask(queries: Rows, keys: Rows) -> Tensor:
    """Return the mask of `queries` [..., Q] over `keys` [..., K] as bool [..., 1, Q, K]."""
    return may_attend(queries[..., :, None], keys[..., None, :]).unsqueeze(-3)


def flex_mask(queries: Rows, keys: Rows) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the same mask as a FlexAttention `mask_mod` for `create_block_mask`.

    queries, keys: rows of shape [batch, Q] and [batch, K].
    """

    def mask_mod(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return may_attend(queries[batch, query], keys[batch, key])

    return mask_mod


def window_mask(cells: Tensor, keys: int) -> Tensor:
    """Return the mask of decoder rows in cache cells `cells` [..., Q] over cells 0..keys-1.

    A decoder lays clean tokens, drafts and masks into consecutive cells in text order, so the rule
    of `may_attend` becomes: a row sees its own cell and those before it. Bool [..., 1, Q, keys].
    """
    return (torch.arange(keys, device=cells.device) <= cells[..., :, None]).unsqueeze(-3)
