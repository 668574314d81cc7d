"""Narrower weights: what they compute, row by row, and what is refused."""

from __future__ import annotations

import pytest
import torch

from marslm.errors import InputError
from marslm.models.packed import make_linear
from marslm.models.quantize import check_quantize, usable, weight_levels

CPU = torch.device("cpu")


def random_linear(
    inputs: int, outputs: int, *, biased: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return a weight, a bias and 65 rows; one row is all zeros and another a thousand times up."""
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    rows = torch.randn(65, inputs, generator=generator)
    rows[3] = 0
    rows[4] *= 1000
    return weight, torch.randn(outputs, generator=generator) if biased else None, rows


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 48), (40, 24), (576, 960)])
def test_an_int8_row_does_not_depend_on_other_rows(biased: bool, inputs: int, outputs: int) -> None:
    """Bit for bit: so neither masks nor other requests can change what is written."""
    weight, bias, rows = random_linear(inputs, outputs, biased=biased)
    linear = make_linear(weight, bias, pack=True, quantize="int8")
    alone = torch.cat([linear(row[None]) for row in rows])
    for count in (1, 2, 3, 5, 8, 16, 17, 32, 33, 65):
        assert torch.equal(linear(rows[-count:]), alone[-count:])
    assert torch.isfinite(alone).all()
    torch.testing.assert_close(
        alone[3], torch.zeros(outputs) if bias is None else bias, rtol=4e-3, atol=0
    )


@pytest.mark.skipif("bf16" not in usable(), reason="a CPU without bfloat16")
@pytest.mark.parametrize("biased", [False, True])
def test_bf16_is_right_to_its_rounding(biased: bool) -> None:
    weight, bias, rows = random_linear(40, 24, biased=biased)
    linear = make_linear(weight, bias, pack=True, quantize="bf16")
    exact = rows.double() @ weight.double().t() + (0 if bias is None else bias)
    error = (linear(rows).double() - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-9)
    assert error.max() < 0.01


@pytest.mark.parametrize("vnni", {False, torch.cpu._is_vnni_supported()})
def test_int8_is_the_exact_product_of_the_levels(
    vnni: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels of weights by output, of rows by row, sums in integers, then one float32 factor."""
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    weight, bias, rows = random_linear(40, 24, biased=True)
    assert bias is not None
    weight_steps = weight.abs().amax(1) / (127 if vnni else 63)
    row_steps = rows.abs().amax(1) / 127 + 1e-20
    levels = (weight / weight_steps[:, None]).round().long()
    products = (rows / row_steps[:, None]).round().long() @ levels.t()
    expected = products * weight_steps.double() * row_steps[:, None].double() + bias
    found = make_linear(weight, bias, pack=True, quantize="int8")(rows).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    transposed = weight.t().contiguous().t()  # as fused weights lie
    again = make_linear(transposed, bias, pack=True, quantize="int8")(rows).double()
    assert torch.equal(again, found)
    exact = rows.double() @ weight.double().t() + bias
    error = (found - exact).norm(dim=1) / exact.norm(dim=1)
    assert error.max() < (0.015 if vnni else 0.02)


def test_seven_bits_of_weight_keep_pairs_of_products_within_sixteen() -> None:
    for exact in (True, False):
        pair = 2 * 255 * weight_levels(exact)
        assert exact or pair <= torch.iinfo(torch.int16).max
    assert weight_levels(exact=True) == torch.iinfo(torch.int8).max


def refuse(said: str, *arguments: object) -> None:
    with pytest.raises(InputError, match=said) as caught:
        check_quantize(*arguments)
    assert "\n" not in str(caught.value)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse("unknown quantize 'int4': choose none, bf16, int8", "int4", CPU, None)
    refuse(
        "is for a CPU, and this model goes to cuda: leave it out",
        "int8",
        torch.device("cuda"),
        None,
    )
    refuse("starts from float32, not torch.float64: leave dtype out", "bf16", CPU, torch.float64)
    check_quantize("none", torch.device("cuda"), torch.bfloat16)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    refuse("not supported by this machine's CPU or torch build: choose none", "int8", CPU, None)
