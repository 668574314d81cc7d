"""The compiled int8 product: oneDNN's bits, and none where it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from marslm.models import compiled, int8_kernel
from marslm.models.packed import make_linear
from marslm.models.quantize import Int8Update

needs_kernel = pytest.mark.skipif(
    int8_kernel._library() is None, reason="no C compiler, or a CPU without AVX512-VNNI"
)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Look for the compiler anew, and again afterwards."""
    int8_kernel._library.cache_clear()
    yield
    int8_kernel._library.cache_clear()


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (32, 48), (576, 960), (1536, 576)])
def test_the_kernel_gives_onednns_bits(
    inputs: int, outputs: int, biased: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    weight[1] = 0
    bias = torch.randn(outputs, generator=generator) if biased else None
    rows = torch.randn(int8_kernel.MOST_ROWS, inputs, generator=generator)
    rows[3] = 0
    rows[4] *= 1000
    kernel = make_linear(weight, bias, pack=True, quantize="int8")
    monkeypatch.setattr(int8_kernel, "can_run", lambda weight: False)
    libraries = make_linear(weight, bias, pack=True, quantize="int8")
    torch.set_num_threads(threads)
    for count in range(1, len(rows) + 1):
        assert torch.equal(kernel(rows[:count]), libraries(rows[:count]))


@needs_kernel
def test_a_cpu_without_tiles_gives_the_same_bits(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, rows = (torch.randn(size, 112, generator=generator) for size in (48, 16))
    tiled = make_linear(weight, None, pack=True, quantize="int8")
    monkeypatch.setenv("MARSLM_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_FLAGS", (*compiled._FLAGS, "-mno-amx-tile", "-mno-amx-int8"))
    int8_kernel._library.cache_clear()
    plain = make_linear(weight, None, pack=True, quantize="int8")
    assert len(list(tmp_path.iterdir())) == 1
    for count in range(1, len(rows) + 1):
        assert torch.equal(plain(rows[:count]), tiled(rows[:count]))


@needs_kernel
@pytest.mark.parametrize(("inputs", "rank", "outputs"), [(32, 16, 48), (576, 96, 960)])
def test_an_update_of_mask_rows_is_two_products(
    inputs: int, rank: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(rank)
    down, up, x, y = (
        torch.randn(shape, generator=generator)
        for shape in ((rank, inputs), (outputs, rank), (70, inputs), (70, outputs))
    )
    kernel = Int8Update(down, up)
    monkeypatch.setattr(int8_kernel, "can_run", lambda weight: False)
    libraries = Int8Update(down, up)
    for count in (1, 4, 9, 16, 17, 64, 70):
        found, expected = y[:count].clone(), y[:count].clone()
        kernel(found, x[:count])
        libraries(expected, x[:count])
        assert torch.equal(found, expected)
        exact = (x[:count].double() @ down.double().t()) @ up.double().t()
        added = (found - y[:count]).double()
        assert (added - exact).norm() < 0.03 * exact.norm()


def test_odd_shapes_are_left_to_onednn() -> None:
    assert not int8_kernel.can_run(torch.zeros(24, 40))


def test_without_a_compiler_there_is_none(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    assert not int8_kernel.can_run(torch.zeros(32, 32))
    linear = make_linear(torch.eye(32), None, pack=True, quantize="int8")
    torch.testing.assert_close(linear(torch.ones(1, 32)), torch.ones(1, 32))


def test_a_compiler_that_fails_leaves_nothing_behind(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MARSLM_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_FLAGS", ("--no-such-flag",))
    assert not int8_kernel.can_run(torch.zeros(32, 32))
    assert not list(tmp_path.iterdir())
