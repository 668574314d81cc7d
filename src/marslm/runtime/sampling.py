"""From logits to tokens.

Every draw is the argmax of the logits plus Gumbel noise that depends on the request's seed and the
token's absolute position alone. So a draw does not depend on the batch, on the window or on how
many tokens a step accepted, and lossless decoding can compare drafts with draws (METHOD section 3).
Knows nothing about drafts or acceptance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marslm.runtime.params import SamplingParams

_SEED_STRIDE = 0x9E3779B97F4A7C15


def process(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the log-probabilities [R, V] that draws follow: float32 or wider, temperature applied.

    At temperature 0 the draw is the argmax, and the distribution reported is the model's own.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide / params.temperature if params.temperature else wide, dim=-1)


def choose(logits: Tensor, params: SamplingParams, first_position: int) -> list[int]:
    """Return one token for each row of `logits` [R, V].

    first_position: index in the text of the token that row 0 chooses; row i chooses the token i
    places later.
    """
    if params.temperature == 0:
        return logits.argmax(-1).tolist()
    noise = torch.stack(
        [_gumbel(params.seed, first_position + row, logits) for row in range(len(logits))]
    )
    return (logits.to(noise.dtype) / params.temperature + noise).argmax(-1).tolist()


def _gumbel(seed: int, position: int, like: Tensor) -> Tensor:
    """Return Gumbel noise [V] for one position, the same on every device."""
    generator = torch.Generator().manual_seed((seed * _SEED_STRIDE + position) % 2**63)
    uniform = torch.rand(like.shape[-1], generator=generator, dtype=torch.float64)
    return -torch.log(-torch.log(uniform.clamp_(min=1e-300))).to(like.device)
