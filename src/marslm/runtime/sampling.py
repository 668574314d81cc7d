"""From logits to tokens.

Every draw is the argmax of the logits plus Gumbel noise that depends on the request's seed and the
token's absolute position alone. So a draw does not depend on the batch, on the window or on how
many tokens a step accepted, and lossless decoding can compare drafts with draws (METHOD section 3).
Knows nothing about drafts or acceptance.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from marslm.runtime.params import SamplingParams


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
    # torch's CPU generator takes 32 bits of a seed, so all of both numbers must go into those.
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=4).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    uniform = torch.rand(like.shape[-1], generator=generator, dtype=torch.float64)
    return -torch.log(-torch.log(uniform.clamp_(min=1e-300))).to(like.device)
