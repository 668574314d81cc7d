"""Each operation and its gradient against the plain formula and autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from marslm.train.operators import low_rank_linears, rms_norm


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_rms_norm_is_the_formula() -> None:
    x, weight = noise(0, 3, 5, 8).requires_grad_(), noise(1, 8)
    ours, plain = rms_norm(x, weight, 1e-3), F.rms_norm(x, (8,), weight, 1e-3)
    torch.testing.assert_close(ours, plain)
    towards = noise(2, 3, 5, 8)
    (expected,) = torch.autograd.grad(plain, x, towards)
    (found,) = torch.autograd.grad(ours, x, towards)
    torch.testing.assert_close(found, expected)


def test_rms_norm_of_bfloat16_adds_up_in_float32() -> None:
    """A sum of 4096 equal squares would stop growing in bfloat16."""
    x = torch.ones(1, 4096, dtype=torch.bfloat16, requires_grad=True)
    y = rms_norm(x, torch.ones(4096, dtype=torch.bfloat16), 0.0)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert (y == 1).all()
    assert x.grad is not None
    assert (x.grad == 0).all()


@pytest.mark.parametrize("biased", [True, False])
def test_low_rank_linears_are_linears_with_updates(biased: bool) -> None:
    x = noise(0, 7, 6).requires_grad_()
    widths, rank = (4, 5), 3
    weights = [noise(10 + n, n, 6).requires_grad_() for n in widths]
    biases = [noise(20 + n, n) if biased else None for n in widths]
    downs = [noise(30 + n, rank, 6).requires_grad_() for n in widths]
    ups = [noise(40 + n, n, rank).requires_grad_() for n in widths]
    ours = low_rank_linears(x, weights, biases, downs, ups)
    plain = [
        F.linear(x, w, b) + x @ down.T @ up.T
        for w, b, down, up in zip(weights, biases, downs, ups, strict=True)
    ]
    for found, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, expected)
    towards, inputs = [noise(50 + n, 7, n) for n in widths], [x, *downs, *ups]
    expected_gradients = torch.autograd.grad(plain, inputs, towards)
    for found, expected in zip(
        torch.autograd.grad(ours, inputs, towards), expected_gradients, strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_frozen_weights_of_low_rank_linears_get_no_gradient() -> None:
    weight, down, up = (noise(n, 4, 4).requires_grad_() for n in range(3))
    low_rank_linears(noise(3, 2, 4), [weight], [None], [down], [up])[0].sum().backward()
    assert weight.grad is None
    assert down.grad is not None
    assert up.grad is not None


def test_a_wide_update_of_a_narrow_linear_gets_wide_gradients() -> None:
    """Weights that are trained stay float32 while products are bfloat16."""
    x, weight = (noise(n, 4, 4, dtype=torch.bfloat16) for n in range(2))
    down, up = (noise(n, 4, 4, dtype=torch.float32).requires_grad_() for n in (2, 3))
    (y,) = low_rank_linears(x, [weight], [None], [down], [up])
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert down.grad is not None
    assert down.grad.dtype == torch.float32
    torch.testing.assert_close(
        y.float(), x.float() @ (weight.float() + up @ down).T, atol=0.1, rtol=0.05
    )
