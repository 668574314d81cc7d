"""What a row is trained to predict, and how the two losses are weighed (METHOD sections 1 and 2).

The alignment is the causal one everywhere, "right shift": the row at position p predicts token
p+1, on a real token and on a mask. So a block of B candidates reads its first from the clean anchor
row and the others from B-1 masks.

Knows nothing about models, batching or optimisers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from marslm.core.forms import Alignment
from marslm.core.streams import Rows, run_ends

IGNORE = -100
"""Target of a row that predicts nothing; the value that `F.cross_entropy` skips."""


def right_shift_targets(position: Tensor, ids: Tensor, supervised: Tensor) -> Tensor:
    """Return what the row at each `position` [R] predicts: token position+1, if it is supervised.

    ids, supervised: the clean text [L]. Clean and noisy rows alike; int64 [R] with `IGNORE`.
    """
    shifted_ids = torch.where(supervised, ids, IGNORE).roll(-1)
    shifted_ids[-1] = IGNORE
    return shifted_ids[position]


def block_targets(noisy: Rows, ids: Tensor, supervised: Tensor, alignment: Alignment) -> Tensor:
    """Return what each row of the masked blocks predicts: token position+1, or its own.

    noisy: rows [R] of one text. ids, supervised: the clean text [L]. int64 [R] with `IGNORE` where
    the target lies past the supervised run that the block starts in.
    """
    place = noisy.position + (alignment == "next")
    inside = place < run_ends(supervised)[noisy.anchor + 1]
    return torch.where(inside, ids[place.clamp(max=len(ids) - 1)], IGNORE)


def distance_weights(seen: Tensor, decay: float) -> Tensor:
    """Return the weights of rows [R] by the masks they see: 1 for none or one, then less."""
    return torch.pow(decay, (seen - 1).clamp(min=0).float())


@dataclass(frozen=True)
class LossCounts:
    """Global targets of one optimiser step, over all micro-batches and ranks.

    Where rows are weighed, the sum of their weights.
    """

    mask: Tensor | float
    ar: Tensor | float


def loss_parts(
    noisy: Tensor, first: Tensor, clean: Tensor, counts: LossCounts
) -> tuple[Tensor, Tensor]:
    """Return L_mask and L_AR, each the mean over its own global count; L = L_mask + w * L_AR.

    noisy: losses of the mask rows. first: losses of the clean anchor rows, the first candidate of
    each block, which belong to L_mask too. clean: losses of all supervised clean rows. All 1-D;
    any may be empty.
    """
    return (noisy.sum() + first.sum()) / counts.mask, clean.sum() / counts.ar


def distill_loss(
    student: Tensor, targets: Tensor, teacher: Tensor, kl_weight: float
) -> tuple[Tensor, Tensor]:
    """Return (1 - k) cross-entropy + k KL(teacher || student) of each row, and its gradient.

    student, teacher: float logits [R, V] for the same text position, the student's read from a
    mask, the teacher's from the clean row there. targets: int64 [R]. kl_weight: k. The losses are
    [R]; the gradient with respect to the student's logits is
    softmax(student) - (1 - k) onehot(target) - k softmax(teacher), [R, V]. No graph is built.
    """
    with torch.no_grad():
        log_student = F.log_softmax(student, dim=-1)
        loss = F.nll_loss(log_student, targets, reduction="none")
        gradient = log_student.exp()
        gradient[torch.arange(len(targets), device=targets.device), targets] -= 1 - kl_weight
        if kl_weight > 0:
            log_teacher = F.log_softmax(teacher, dim=-1)
            likely = log_teacher.exp()
            divergence = torch.linalg.vecdot(likely, log_teacher.sub_(log_student))
            loss = torch.lerp(loss, divergence, kl_weight)
            gradient.sub_(likely, alpha=kl_weight)
    return loss, gradient
