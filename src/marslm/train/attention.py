"""Which attention kernel training runs: SDPA with a dense mask, or FlexAttention on a GPU.

FlexAttention skips the blocks of rows that see nothing of each other, more than half of a
two-stream mask, and never holds the mask. It is compiled for the machine at hand, so it is used
only once it has computed there what SDPA does. Knows nothing about objectives.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import PreTrainedModel

from marslm.core.masks import dense_mask, flex_mask
from marslm.core.streams import Rows, clean_rows, join, mask_rows

FLEX_ROWS = 128
"""Streams are padded to a multiple of this on a GPU: FlexAttention's block, and few shapes."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""By how much of the largest value the kernels may differ: each rounds in its own order."""


@dataclass(frozen=True)
class Attention:
    """A kernel, by transformers' name for it, and the form of mask that it takes."""

    name: Literal["sdpa", "flex_attention"] = "sdpa"

    def mask(self, rows: Rows, *, bidirectional: bool = False) -> Tensor | BlockMask:
        """Return the mask of `rows` [B, R] over themselves."""
        if self.name == "sdpa":
            return dense_mask(rows, rows, bidirectional=bidirectional)
        batch, count = rows.position.shape
        rule = flex_mask(rows, rows, bidirectional=bidirectional)
        return create_block_mask(rule, batch, None, count, count, device=rows.position.device)


SDPA, FLEX = Attention("sdpa"), Attention("flex_attention")


def pick_attention(network: PreTrainedModel) -> Attention:
    """Return FlexAttention where it works, and set the network to what is returned.

    On a CPU it has no backward pass. On a GPU it is tried against SDPA first; where it fails or
    computes something else, a warning says so and SDPA serves.
    """
    if network.device.type != "cuda":
        return SDPA
    try:
        reason = disagreement(network, FLEX)
    except Exception as error:  # whatever a compiler may raise
        reason = f"it fails ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    network.set_attn_implementation(SDPA.name if reason else FLEX.name)
    if reason:
        warnings.warn(f"training runs SDPA instead of FlexAttention: {reason}", stacklevel=2)
    return SDPA if reason else FLEX


def disagreement(network: PreTrainedModel, attention: Attention) -> str | None:
    """Return how `attention` differs from SDPA on a small two-stream batch, None if it does not.

    Compares the last hidden states and, where there are gradients, those of the embeddings.
    """
    rows = _example().to(network.device)
    ids = torch.arange(len(rows), device=network.device)[None] % network.config.vocab_size
    expected, found = (_run(network, each, ids, rows) for each in (SDPA, attention))
    for what, ours, theirs in zip(("forward", "backward"), expected, found, strict=True):
        difference = float((ours - theirs).abs().max() / ours.abs().max())
        if not difference <= _TOLERANCE[network.dtype]:
            return f"its {what} pass differs from SDPA's by {difference:.1g}"
    return None


def _run(
    network: PreTrainedModel, attention: Attention, ids: Tensor, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Return the last hidden states, and their sum of squares' gradient at the embeddings."""
    network.set_attn_implementation(attention.name)
    embeddings = network.get_input_embeddings()(ids).detach()
    embeddings.requires_grad_(torch.is_grad_enabled())
    hidden = network.get_submodule("model")(
        inputs_embeds=embeddings,
        position_ids=rows.position,
        attention_mask=attention.mask(rows),
        use_cache=False,
    ).last_hidden_state
    if not torch.is_grad_enabled():
        return hidden, hidden
    (gradient,) = torch.autograd.grad(hidden.float().square().sum(), embeddings)
    return hidden.detach(), gradient


def _example() -> Rows:
    """Return a text of three blocks of attention with masks behind a third of its tokens."""
    anchors = torch.arange(10, 3 * FLEX_ROWS - 16, 3)
    masks = torch.full_like(anchors, 3)
    joined = join([clean_rows(3 * FLEX_ROWS - 16), mask_rows(anchors, masks)])
    return joined[None]
