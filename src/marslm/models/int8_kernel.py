"""The int8 product of few rows, compiled on first use where the CPU has AVX512-VNNI.

oneDNN spends 30 us on each call and quantising rows takes five more, which is half the time of a
small model's step. This kernel does both at once, at the memory's speed, and gives the same bits.
For many rows it quantises alone, in one pass where torch needs six. Without a C compiler or those
instructions there is none, and oneDNN and torch do the work. Knows nothing about layers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Levels:
    """A weight [out, in] as int8 `levels` times `steps` [out]."""

    levels: Tensor
    steps: Tensor

    def packed(self) -> Tensor:
        """Return the levels as the kernel reads them: unsigned, in blocks of 16 outputs."""
        outputs, inputs = self.levels.shape
        blocks = self.levels.view(outputs // _BLOCK, _BLOCK, inputs // 4, 4).transpose(1, 2)
        return blocks.to(torch.int16).add_(128).to(torch.uint8).contiguous()


class Product:
    """x [up to MOST_ROWS, in] -> x @ weight.T + bias, rows quantised each by itself."""

    def __init__(self, weight: Levels, bias: Tensor | None) -> None:
        """Pack the weight."""
        self._run = _loaded().marslm_int8_linear
        self._outputs, self._inputs = weight.levels.shape
        self._kept = (weight.packed(), weight.steps.contiguous(), bias, *_scratch(self._inputs))
        self._places = [0 if each is None else each.data_ptr() for each in self._kept]

    def __call__(self, x: Tensor) -> Tensor:
        """Return a new [rows, out]."""
        x = x.contiguous()
        y = x.new_empty(len(x), self._outputs)
        weight, steps, bias, *scratch = self._places
        sizes = (len(x), self._inputs, self._outputs, torch.get_num_threads())
        self._run(x.data_ptr(), weight, steps, bias, y.data_ptr(), *scratch, *sizes)
        return y


class Update:
    """y += (x @ down.T) @ up.T for up to MOST_ROWS rows, in place."""

    def __init__(self, down: Levels, up: Levels) -> None:
        """Pack both matrices."""
        self._run = _loaded().marslm_int8_update
        rank, self._inputs = down.levels.shape
        self._sizes = (self._inputs, rank, len(up.levels))
        matrices = (down.packed(), down.steps, up.packed(), up.steps)
        low = torch.empty(MOST_ROWS * rank)
        self._kept = (*matrices, low, *_scratch(max(self._inputs, rank)))
        self._places = [each.data_ptr() for each in self._kept]

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y [rows, out]; both are contiguous."""
        places, threads = self._places, torch.get_num_threads()
        sizes = (len(x), *self._sizes, threads)
        self._run(x.data_ptr(), *places[:4], y.data_ptr(), *places[4:], *sizes)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [R, in] as int8 levels [R, in] and steps [R, 1]."""
    x = x.contiguous()
    levels, steps = torch.empty_like(x, dtype=torch.int8), x.new_empty(len(x), 1)
    sizes = (*x.shape, torch.get_num_threads())
    _loaded().marslm_int8_rows(x.data_ptr(), levels.data_ptr(), steps.data_ptr(), *sizes)
    return levels, steps


def _scratch(inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for the levels, steps and offsets of a call's rows."""
    levels = torch.empty(MOST_ROWS * inputs, dtype=torch.int8)
    return levels, torch.empty(MOST_ROWS), torch.empty(MOST_ROWS, dtype=torch.int32)


def _loaded() -> ctypes.CDLL:
    library = _library()
    assert library is not None
    return library


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
    for function, pointers, sizes in (
        (library.marslm_int8_rows, 3, 3),
        (library.marslm_int8_linear, 8, 4),
        (library.marslm_int8_update, 10, 5),
    ):
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int] * sizes
        function.restype = None
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
