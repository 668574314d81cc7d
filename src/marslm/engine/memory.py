"""How many tokens fit into a cache of so many bytes.

Knows nothing about requests.
"""

from __future__ import annotations

from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.cache import whole_blocks


def bytes_per_token(model: MarsModel) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    config = model.network.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cells = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
    return int(cells) * model.network.dtype.itemsize


def length_within(model: MarsModel, slots: int, cache_bytes: int) -> int:
    """Return how long each of `slots` requests may be in a cache of `cache_bytes`.

    Raises InputError if not even the smallest cache fits.
    """
    block = whole_blocks(1)
    of_a_block = slots * block * bytes_per_token(model)
    blocks = cache_bytes // of_a_block
    if blocks < 1:
        raise InputError(
            f"a cache of {cache_bytes} bytes is too small for {slots} requests of {model.name}: "
            f"give at least {of_a_block}, or fewer slots"
        )
    return blocks * block
