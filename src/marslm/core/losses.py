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

IGNORE = -100
"""Target of a row that predicts nothing; the value that `F.cross_entropy` skips."""


def right_shift_targets(position: Tensor, ids: Tensor, supervised: Tensor) -> Tensor:
    """Return what the row at each `position` [R] predicts: token position+1, if it is supervised.

    ids, supervised: the clean text [L]. Clean and noisy rows alike; int64 [R] with `IGNORE`.
    """
    shifted_ids = torch.where(supervised, ids, IGNORE).roll(-1)
    shifted_ids[-1] = IGNORE
    return shifted_ids[position]


@dataclass(frozen=True)
class LossCounts:
    """Global numbers of targets in one optimiser step: over all micro-batches and all ranks."""

    mask: Tensor | float
    ar: Tensor | float


def mars_loss(
    noisy: Tensor, first: Tensor, clean: Tensor, counts: LossCounts, ar_weight: float
) -> Tensor:
    """Return L = L_mask + w * L_AR, each the mean over its own global count of targets.

    noisy: losses of the mask rows. first: losses of the clean anchor rows, the first candidate of
    each block, which belong to L_mask too. clean: losses of all supervised clean rows. All 1-D;
    any may be empty.
    """
    return (noisy.sum() + first.sum()) / counts.mask + ar_weight * clean.sum() / counts.ar


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
