"""The chunked loss against full logits and plain autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from marslm.train import distillation
from marslm.train.distillation import distill_losses

ROWS, HIDDEN, VOCABULARY, MASK = 11, 6, 13, 4


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("product", "chunk"), [(10**6, 10**6), (5 * 13, 2 * 13), (1, 1)])
@pytest.mark.parametrize("kl_weight", [0.0, 0.5, 1.0])
def test_losses_hits_and_gradients_are_those_of_full_logits(
    product: int, chunk: int, kl_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the rows of a chunk, one row included; rows may weigh differently."""
    monkeypatch.setattr(distillation, "_PRODUCT", product)
    monkeypatch.setattr(distillation, "_CHUNK", chunk)
    hidden, teacher = noise(0, ROWS, HIDDEN).requires_grad_(), noise(1, ROWS, HIDDEN)
    head, weights = noise(2, VOCABULARY, HIDDEN), noise(3, ROWS)
    targets = torch.arange(ROWS) % MASK
    logits, taught_by = F.linear(hidden, head), F.linear(teacher, head)
    logits[:, MASK], taught_by[:, MASK] = -torch.inf, -torch.inf
    hard = F.cross_entropy(logits, targets, reduction="none")
    likely = taught_by.softmax(-1)
    apart = likely * (likely.clamp(min=1e-30).log() - logits.log_softmax(-1).clamp(min=-1e4))
    expected = (1 - kl_weight) * hard + kl_weight * apart.sum(-1)
    (of_hidden,) = torch.autograd.grad((expected * weights).sum(), hidden)

    losses, right = distill_losses(hidden, targets, teacher, head, MASK, kl_weight)

    torch.testing.assert_close(losses, expected)
    assert right.tolist() == (logits.argmax(-1) == targets).tolist()
    assert 0 < right.sum() < ROWS
    (found,) = torch.autograd.grad((losses * weights).sum(), hidden)
    torch.testing.assert_close(found, of_hidden)


def test_no_rows() -> None:
    """A batch may hold no mask at all."""
    hidden = noise(0, 0, HIDDEN).requires_grad_()
    targets, head = torch.zeros(0, dtype=torch.long), noise(2, VOCABULARY, HIDDEN)
    losses, right = distill_losses(hidden, targets, noise(1, 0, HIDDEN), head, MASK, 0.5)
    losses.sum().backward()
    assert len(losses) == len(right) == 0


def test_logits_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds a chunk of rows x vocabulary, whatever the number of rows."""
    monkeypatch.setattr(distillation, "_PRODUCT", 3 * VOCABULARY)
    most = 0
    real = F.linear

    def spy(x: Tensor, weight: Tensor) -> Tensor:
        nonlocal most
        most = max(most, len(x))
        return real(x, weight)

    monkeypatch.setattr(distillation.F, "linear", spy)
    targets = torch.zeros(ROWS, dtype=torch.long)
    hidden, head = noise(0, ROWS, HIDDEN), noise(2, VOCABULARY, HIDDEN)
    distill_losses(hidden, targets, noise(1, ROWS, HIDDEN), head, MASK, 0.5)
    assert most == 3
