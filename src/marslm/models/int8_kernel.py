"""The int8 product of few rows, compiled on first use where the CPU has AVX512-VNNI.

oneDNN spends 30 us on each call and quantising rows takes five more, which is half the time of a
small model's step. This kernel does both at once, at the memory's speed, and gives the same bits.
Without a C compiler or those instructions there is none, and oneDNN does the work. Knows nothing
about layers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from marslm.models.gguf import cache_folder

_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")

MOST_ROWS = 16
"""Beyond so many rows oneDNN's blocks, or its matrix unit, are faster."""

_BLOCK = 16


def can_run(weight: Tensor) -> bool:
    """Return whether the kernel takes a weight [out, in] of this shape, and is there at all."""
    return not any(size % _BLOCK for size in weight.shape) and _library() is not None


def pack(levels: Tensor) -> Tensor:
    """Return int8 levels [out, in] as the kernel reads them: unsigned, in blocks of 16 outputs."""
    outputs, inputs = levels.shape
    blocks = levels.view(outputs // _BLOCK, _BLOCK, inputs // 4, 4).transpose(1, 2)
    return blocks.to(torch.int16).add_(128).to(torch.uint8).contiguous()


def make_product(levels: Tensor, steps: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return x [up to MOST_ROWS, in] -> x @ (levels * steps).T + bias, rows quantised."""
    library = _library()
    assert library is not None
    run = library.marslm_int8_linear
    outputs, inputs = levels.shape
    packed, steps = pack(levels), steps.contiguous()
    row_levels = torch.empty(MOST_ROWS * inputs, dtype=torch.int8)
    row_steps, offsets = torch.empty(MOST_ROWS), torch.empty(MOST_ROWS, dtype=torch.int32)
    weights = (packed.data_ptr(), steps.data_ptr(), 0 if bias is None else bias.data_ptr())
    scratch = (row_levels.data_ptr(), row_steps.data_ptr(), offsets.data_ptr())
    owners = (packed, steps, bias, row_levels, row_steps, offsets)

    def product(x: Tensor, _owners: tuple[Tensor | None, ...] = owners) -> Tensor:
        x = x.contiguous()
        y = x.new_empty(len(x), outputs)
        threads = torch.get_num_threads()
        run(x.data_ptr(), *weights, y.data_ptr(), *scratch, len(x), inputs, outputs, threads)
        return y

    return product


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled kernel, None if this machine cannot have it."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None or not torch.cpu.get_capabilities().get("avx512_vnni"):
        return None
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.CalledProcessError):
        return None
    library.marslm_int8_linear.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_int] * 4
    library.marslm_int8_linear.restype = None
    return library


def _compiled(compiler: str) -> Path:
    """Return the compiled file, made the first time for this source, compiler and CPU."""
    capabilities = sorted(torch.cpu.get_capabilities().items())
    key = f"{_SOURCE.read_text(encoding='utf-8')} {compiler} {_FLAGS} {capabilities}"
    name = f"int8_kernel-{hashlib.sha256(key.encode()).hexdigest()[:12]}.so"
    path = cache_folder() / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            draft = Path(folder) / name
            command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(draft)]
            subprocess.run(command, check=True, capture_output=True)
            draft.replace(path)
    return path
