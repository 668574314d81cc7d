"""Compiled products: exact where they are said to be, and none where they cannot be had."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from marslm.models import compiled, compiled_product
from marslm.models.compiled_product import Levels, Product, Update
from marslm.models.packed import make_linear
from marslm.models.quantize import Int8Update, _narrow

needs_kernel = pytest.mark.skipif(
    compiled_product._library() is None, reason="no C compiler, or a CPU without AVX2"
)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Look for the compiler anew, and again afterwards."""
    compiled_product._library.cache_clear()
    yield
    compiled_product._library.cache_clear()


def level_product(rows: Tensor, weight: Levels, bias: Tensor | None) -> Tensor:
    """Return what the kernels should, to the bit: exact sums, then the same roundings."""
    steps = torch.add(torch.tensor(1e-20), rows.abs().amax(1, keepdim=True), alpha=1 / 127)
    sums = rows.div(steps).round().double() @ weight.levels.double().t()
    found = sums.float() * weight.steps * steps
    return found if bias is None else bias + found


def awkward_rows(count: int, inputs: int, generator: torch.Generator) -> Tensor:
    """Return random rows, one of them zeros and one a thousand times larger."""
    rows = torch.randn(count, inputs, generator=generator)
    rows[3] = 0
    rows[4] *= 1000
    return rows


SHAPES = [(16, 16), (32, 48), (576, 960), (1536, 576)]
COUNTS = [*range(1, 20), 63, 64, 65, 70, 128, 150]
"""Fewer than are summed at once, a piece, and more."""


@needs_kernel
def test_threads_may_share_a_product() -> None:
    """Its levels of rows lie in room of the thread's own."""
    generator = torch.Generator().manual_seed(0)
    kernel = make_linear(torch.randn(512, 512, generator=generator), pack=True, quantize="int8")
    rows = [torch.randn(64, 512, generator=generator) for _ in range(2)]
    expected = [kernel(each) for each in rows]

    def right(index: int) -> bool:
        return all(torch.equal(kernel(rows[index]), expected[index]) for _ in range(100))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(right, range(2)))


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_int8_sums_are_exact(inputs: int, outputs: int, biased: bool, threads: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    weight[1] = 0
    bias = torch.randn(outputs, generator=generator) if biased else None
    rows = awkward_rows(max(COUNTS), inputs, generator)
    kernel = make_linear(weight, bias, pack=True, quantize="int8")
    expected = level_product(rows, _narrow(weight), bias)
    torch.set_num_threads(threads)
    for count in COUNTS:
        assert torch.equal(kernel(rows[:count]), expected[:count])


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_float32_rows_depend_on_nothing_beside_them(
    inputs: int, outputs: int, biased: bool, threads: int
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(inputs, outputs, generator=generator).t()  # as fused weights lie
    bias = torch.randn(outputs, generator=generator) if biased else None
    rows = awkward_rows(max(COUNTS), inputs, generator)
    kernel = make_linear(weight, bias, pack=True)
    assert isinstance(kernel, Product)
    torch.set_num_threads(threads)
    found = kernel(rows)
    exact = F.linear(rows.double(), weight.double(), None if bias is None else bias.double())
    sizes = F.linear(rows.double().abs(), weight.double().abs())
    assert ((found - exact).abs() <= 1e-6 * (1 + sizes)).all()
    for count in COUNTS:
        assert torch.equal(kernel(rows[:count]), found[:count])


@needs_kernel
def test_a_cpu_without_tiles_gives_the_same_bits(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, rows = (torch.randn(size, 112, generator=generator) for size in (48, 16))
    tiled = make_linear(weight, None, pack=True, quantize="int8")
    monkeypatch.setenv("MARSLM_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_FLAGS", (*compiled._FLAGS, "-mno-amx-tile", "-mno-amx-int8"))
    compiled_product._library.cache_clear()
    plain = make_linear(weight, None, pack=True, quantize="int8")
    assert len(list(tmp_path.iterdir())) == 1
    for count in range(1, len(rows) + 1):
        assert torch.equal(plain(rows[:count]), tiled(rows[:count]))


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(
    ("inputs", "rank", "edges", "outputs"),
    [(32, 16, [0], 48), (576, 32, [0, 576, 768], 960), (64, 16, [0, 16, 32, 48], 64)],
)
def test_an_update_is_two_products_for_each_part(
    inputs: int, rank: int, edges: list[int], outputs: int, narrow: bool, threads: int
) -> None:
    generator = torch.Generator().manual_seed(rank)
    down, up, x, y = (
        torch.randn(shape, generator=generator)
        for shape in (
            (rank * len(edges), inputs),
            (outputs, rank),
            (150, inputs),
            (150, outputs),
        )
    )
    kernel = Int8Update(down, up, edges) if narrow else Update(down, up, edges)
    kind = "int8" if narrow else "none"
    low = make_linear(down, None, pack=True, quantize=kind)
    parts = [slice(*each) for each in zip(edges, [*edges[1:], outputs], strict=True)]
    highs = [make_linear(up[part], None, pack=True, quantize=kind) for part in parts]
    torch.set_num_threads(threads)
    for count in (1, 4, 9, 16, 17, 64, 70, 150):
        found = y[:count].clone()
        kernel(found, x[:count])
        ranks = low(x[:count]).split(rank, dim=1)
        expected = torch.cat([high(each) for high, each in zip(highs, ranks, strict=True)], dim=1)
        assert torch.equal(found, y[:count] + expected)
        exact = torch.cat(
            [
                x[:count].double() @ each.double().t() @ up[part].double().t()
                for each, part in zip(down.split(rank), parts, strict=True)
            ],
            dim=1,
        )
        added = (found - y[:count]).double()
        assert (added - exact).norm() < (0.03 if narrow else 1e-5) * exact.norm()


def test_parts_begin_at_whole_blocks() -> None:
    down, up = torch.zeros(32, 32), torch.zeros(64, 16)
    assert not compiled_product.can_update(down, up, [0, 24])
    assert not compiled_product.can_update(down, up, [0, 16, 32, 48, 56])


@needs_kernel
@pytest.mark.parametrize("source", ["models/product.c", "runtime/compiled_step.c"])
@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "icelake-server", "sapphirerapids"])
def test_every_kind_of_cpu_has_a_source_that_compiles(cpu: str, source: str) -> None:
    """AVX2; AVX-512 without VNNI, with it, and with AMX: this machine runs one of them."""
    compiler = next(filter(None, map(shutil.which, compiled._COMPILERS)))
    command = [compiler, f"-march={cpu}", "-fopenmp", "-fsyntax-only", "-Wall", "-Wextra"]
    known = subprocess.run([*command, "-xc", "/dev/null"], check=False, capture_output=True)
    if known.returncode:
        pytest.skip(f"the compiler does not know {cpu}")
    path = compiled.HEADERS.parent / source
    found = subprocess.run(
        [*command, f"-I{compiled.HEADERS}", str(path)], check=False, capture_output=True, text=True
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_odd_shapes_are_left_to_onednn() -> None:
    assert not compiled_product.can_run(torch.zeros(24, 40))


def test_without_a_compiler_there_is_none(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    assert not compiled_product.can_run(torch.zeros(32, 32))
    linear = make_linear(torch.eye(32), None, pack=True, quantize="int8")
    torch.testing.assert_close(linear(torch.ones(1, 32)), torch.ones(1, 32))


def test_a_compiler_that_fails_leaves_nothing_behind(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MARSLM_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_FLAGS", ("--no-such-flag",))
    assert not compiled_product.can_run(torch.zeros(32, 32))
    assert not list(tmp_path.iterdir())
