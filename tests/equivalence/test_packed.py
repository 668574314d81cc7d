"""Compiled and packed weights give the plain ones' results; the switch decides which are used."""

from __future__ import annotations

import pytest
import torch

from helpers import build_model, build_runner, random_prompts, with_random_adapter
from marslm.models import compiled_product, packed
from marslm.models.compiled_product import Product
from marslm.models.tiny import ARCHITECTURES
from marslm.runtime.decoder import Decoder
from marslm.runtime.window import Window
from marslm.runtime.work import Work

needs_packing = pytest.mark.skipif(
    not packed.can_pack(torch.zeros(1)), reason="this machine's torch packs no weights"
)


@pytest.fixture(params=[True, False], ids=["compiled", "packed"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether products are compiled ones, or oneDNN's as on a machine without a compiler."""
    if not request.param:
        monkeypatch.setattr(compiled_product, "can_run", lambda weight: False)
    elif not compiled_product.can_run(torch.zeros(16, 16)):
        pytest.skip("no C compiler, or a CPU without AVX2")
    return bool(request.param)


@needs_packing
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_logits_equal_plain_ones(architecture: str, compiled: bool) -> None:
    model = with_random_adapter(build_model(architecture, dtype=torch.float32))
    mask = model.mask_token_id
    results = []
    for pack in (False, True):
        runner, _ = build_runner(model, slots=3, pack=pack)
        works = [
            Work(slot, 0, prompt, Window([mask] * 3), 4)
            for slot, prompt in enumerate(random_prompts([1, 7, 30]))
        ]
        results.append(torch.cat(runner.forward(works)))
    plain, fast = results
    assert torch.isfinite(plain[:, :mask]).all()
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-4)


@needs_packing
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 16, 33])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_linear_serves_any_number_of_rows(rows: int, biased: bool) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(24, 40), torch.randn(rows, 40)
    bias = torch.randn(24) if biased else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias)
    linear = packed.make_linear(weight, bias, pack=True)
    torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=1e-5)


@needs_packing
@pytest.mark.parametrize(
    ("pack", "dtype", "packs"),
    [
        (True, torch.float32, True),
        (False, torch.float32, False),
        (True, torch.float64, False),
        (True, torch.bfloat16, False),
    ],
)
def test_the_switch_and_the_dtype_decide(
    pack: bool, dtype: torch.dtype, packs: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packings = []
    real = torch.ops.mkldnn._reorder_linear_weight

    def spy(*arguments: object) -> torch.Tensor:
        packings.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", spy)
    decoder = Decoder(build_model("qwen2", dtype=dtype), max_length=8, pack=pack)
    assert bool(packings) == (packs and not compiled)
    assert isinstance(decoder._head, Product) == (packs and compiled)


def test_bfloat16_decodes() -> None:
    """Where nothing is packed and rounding is coarse, the pass still follows the float64 one."""
    prompt = random_prompts([12])[0]
    coarse, fine = (
        build_runner(build_model("llama", dtype=dtype))[0].forward(
            [Work(0, 0, prompt, Window(), 1)]
        )[0]
        for dtype in (torch.bfloat16, torch.float64)
    )
    assert coarse.dtype == torch.bfloat16
    similarity = torch.cosine_similarity(coarse[:, :256].double(), fine[:, :256])
    assert float(similarity) > 0.99
