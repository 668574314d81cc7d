"""Medusa heads (arXiv 2401.10774): small networks that guess tokens further ahead from one state.

The baseline that MARS is compared with: it needs extra parameters, a head of the vocabulary's size
for each further token, where masks need none. Knows nothing about training or verification.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from marslm.errors import InputError

WEIGHTS_FILE = "medusa_heads.safetensors"


class MedusaHeads(nn.Module):
    """Head k, from 1, reads the state whose own next token is t+1 and guesses token t+1+k.

    Each is a residual block and a matrix of its own, as in the paper (section 2.1.1); both start so
    that every head says what the model's own head says.
    """

    def __init__(self, head: Tensor, count: int) -> None:
        """`head`: the model's own [V, H], which the heads start from."""
        super().__init__()
        vocabulary, hidden = head.shape
        blocks = [nn.Linear(hidden, hidden) for _ in range(count)]
        outputs = [nn.Linear(hidden, vocabulary, bias=False) for _ in range(count)]
        self.blocks, self.outputs = nn.ModuleList(blocks), nn.ModuleList(outputs)
        with torch.no_grad():
            for block, output in zip(blocks, outputs, strict=True):
                block.weight.zero_()
                block.bias.zero_()
                output.weight.copy_(head)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the weights."""
        return next(self.parameters()).dtype

    def __len__(self) -> int:
        return len(self.blocks)

    def states(self, hidden: Tensor, head: int) -> Tensor:
        """Return what head `head`, from 1, makes of states [..., H], before its last matrix."""
        return hidden + F.silu(self.blocks[head - 1](hidden))

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        """Return the guesses of head `head`, from 1, for states [..., H]: [..., V]."""
        found: Tensor = self.outputs[head - 1](self.states(hidden, head))
        return found


def read_heads(folder: Path, network: PreTrainedModel) -> MedusaHeads:
    """Read the heads in `folder` for a network; InputError if they are damaged or do not fit."""
    try:
        weights = load_file(folder / WEIGHTS_FILE)
        count = sum(name.startswith("outputs.") for name in weights)
        own = network.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        heads = MedusaHeads(own.detach(), count)
        heads.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the Medusa heads in {folder} are damaged ({reason}); restore them"
        ) from error
    return heads.to(own).eval()
