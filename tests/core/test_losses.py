"""Which row predicts which token, and how the losses are weighed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from marslm.core.losses import (
    IGNORE,
    LossCounts,
    distill_loss,
    loss_parts,
    right_shift_targets,
)
from marslm.core.streams import block_anchors, clean_rows, mask_rows, rows_per_anchor

IDS = torch.tensor([10, 11, 12, 13, 14, 15, 16, 17])
SUPERVISED = torch.tensor([False, False, False, True, True, True, True, False])


def test_the_row_of_a_clean_token_predicts_the_next_token() -> None:
    """Only the answer's tokens 13..16 are targets; token 17 belongs to the template."""
    targets = right_shift_targets(clean_rows(8).position, IDS, SUPERVISED)
    assert targets.tolist() == [IGNORE, IGNORE, 13, 14, 15, 16, IGNORE, IGNORE]


def test_a_block_of_four_as_the_method_spells_it_out() -> None:
    """With x[0..a] clean and masks after it, row a predicts x[a+1] and mask d predicts x[a+1+d].

    The table of METHOD section 1 at a = 2, B = 4.
    """
    anchor = torch.tensor([2])
    masks = mask_rows(anchor, rows_per_anchor(SUPERVISED, anchor, 4))
    assert masks.position.tolist() == [3, 4, 5]
    candidates = [
        *right_shift_targets(anchor, IDS, SUPERVISED).tolist(),
        *right_shift_targets(masks.position, IDS, SUPERVISED).tolist(),
    ]
    assert candidates == [13, 14, 15, 16]


def test_a_mask_is_never_trained_on_the_token_it_stands_for() -> None:
    """The off-by-one of FAULTS 16: the mask at position p stands for x[p] but predicts x[p+1]."""
    anchors = block_anchors(SUPERVISED, 4)
    masks = mask_rows(anchors, rows_per_anchor(SUPERVISED, anchors, 4))
    targets = right_shift_targets(masks.position, IDS, SUPERVISED)
    assert torch.equal(targets, IDS[masks.position + 1])
    assert not (targets == IDS[masks.position]).any()


def test_the_last_row_never_wraps_around() -> None:
    supervised = torch.ones(8, dtype=torch.bool)
    assert right_shift_targets(torch.tensor([7]), IDS, supervised).tolist() == [IGNORE]


def mars_loss(
    noisy: Tensor, first: Tensor, clean: Tensor, counts: LossCounts, *, ar_weight: float
) -> Tensor:
    l_mask, l_ar = loss_parts(noisy, first, clean, counts)
    return l_mask + ar_weight * l_ar


@given(st.text("CA", min_size=1, max_size=20))
def test_exactly_the_answers_tokens_are_targets(pattern: str) -> None:
    supervised = torch.tensor([c == "A" for c in pattern])
    ids = torch.arange(100, 100 + len(pattern))
    targets = right_shift_targets(clean_rows(len(pattern)).position, ids, supervised)
    assert targets[targets != IGNORE].tolist() == ids[1:][supervised[1:]].tolist()


def test_the_mask_loss_is_the_mean_over_all_candidates() -> None:
    """B = 4: the anchor's row counts among the four, and in the AR loss once more."""
    noisy, first = torch.tensor([2.0, 3.0, 4.0]), torch.tensor([1.0])
    clean = torch.tensor([1.0, 5.0, 6.0, 8.0])
    counts = LossCounts(mask=4, ar=4)
    assert mars_loss(noisy, first, clean, counts, ar_weight=0).item() == pytest.approx(2.5)
    assert mars_loss(noisy, first, clean, counts, ar_weight=1).item() == pytest.approx(2.5 + 5)
    assert mars_loss(noisy, first, clean, counts, ar_weight=0.5).item() == pytest.approx(2.5 + 2.5)


@pytest.mark.parametrize(("block_size", "share"), [(4, 0.625), (8, 0.5625), (16, 0.53125)])
def test_the_papers_share_of_ar_equivalent_signal(block_size: int, share: float) -> None:
    """The paper's (1 + 1/B) / 2: what share of the loss's weight lies on clean rows at w = 1."""
    length = block_size * 6
    supervised = torch.tensor([False] + [True] * length)
    anchors = block_anchors(supervised, block_size)
    masks = rows_per_anchor(supervised, anchors, block_size)
    noisy = torch.zeros(int(masks.sum()), requires_grad=True)
    clean = torch.zeros(length, requires_grad=True)
    counts = LossCounts(mask=len(noisy) + len(anchors), ar=length)
    loss = mars_loss(noisy, clean[anchors], clean, counts, ar_weight=1)
    loss.backward()
    assert clean.grad is not None
    assert noisy.grad is not None
    total = clean.grad.sum() + noisy.grad.sum()
    assert (clean.grad.sum() / total).item() == pytest.approx(share)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_parts_with_global_counts_add_up_to_the_whole(sizes: list[int]) -> None:
    """FAULTS 18: micro-batches of any sizes give the loss of one batch."""
    generator = torch.Generator().manual_seed(sum(sizes))
    parts = [
        tuple(torch.rand(size + extra, generator=generator) for extra in (2, 0, 3))
        for size in sizes
    ]
    whole = [torch.cat(stream) for stream in zip(*parts, strict=True)]
    counts = LossCounts(mask=len(whole[0]) + len(whole[1]), ar=len(whole[2]))
    total = sum(mars_loss(*part, counts, ar_weight=0.7) for part in parts)
    torch.testing.assert_close(total, mars_loss(*whole, counts, ar_weight=0.7))


def test_empty_streams_cost_nothing() -> None:
    none, counts = torch.zeros(0), LossCounts(mask=1, ar=1)
    assert mars_loss(none, none, none, counts, ar_weight=1).item() == 0


def logits(seed: int) -> Tensor:
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(seed))


TARGETS = torch.tensor([0, 6, 3, 3, 1])


def test_distillation_without_kl_is_cross_entropy() -> None:
    expected = F.cross_entropy(logits(0), TARGETS, reduction="none")
    torch.testing.assert_close(distill_loss(logits(0), TARGETS, logits(1), 0.0)[0], expected)


def test_distillation_with_kl_alone_is_the_divergence_from_the_teacher() -> None:
    teacher, student = logits(1).softmax(-1), logits(0).softmax(-1)
    expected = (teacher * (teacher / student).log()).sum(-1)
    torch.testing.assert_close(distill_loss(logits(0), TARGETS, logits(1), 1.0)[0], expected)
    nothing_to_learn = distill_loss(logits(1), TARGETS, logits(1), 1.0)
    for part in nothing_to_learn:
        torch.testing.assert_close(part, torch.zeros_like(part), atol=1e-6, rtol=0)


def test_distillation_mixes_by_weight() -> None:
    hard, soft, mixed = (distill_loss(logits(0), TARGETS, logits(1), w) for w in (0.0, 1.0, 0.25))
    for ours, of_hard, of_soft in zip(mixed, hard, soft, strict=True):
        torch.testing.assert_close(ours, 0.75 * of_hard + 0.25 * of_soft)


@pytest.mark.parametrize("kl_weight", [0.0, 0.3, 1.0])
def test_the_gradient_of_distillation_is_autograds(kl_weight: float) -> None:
    student, teacher = logits(0).double().requires_grad_(), logits(1).double()
    hard = F.cross_entropy(student, TARGETS, reduction="none")
    soft = F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    expected = (1 - kl_weight) * hard + kl_weight * soft
    (of_student,) = torch.autograd.grad(expected.sum(), student)
    loss, gradient = distill_loss(student, TARGETS, teacher, kl_weight)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, of_student)
    assert not loss.requires_grad


def test_distillation_stays_finite_where_the_mask_token_is_excluded() -> None:
    """Training gives [MASK] a very low logit on both sides, and KL multiplies it by zero."""
    student, teacher = logits(0), logits(1)
    student[:, 2] = teacher[:, 2] = -1e4
    loss, gradient = distill_loss(student, TARGETS, teacher, 0.5)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()
    assert (gradient[:, 2] == 0).all()
