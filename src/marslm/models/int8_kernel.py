"""The int8 product of few rows, compiled on first use where the CPU has AVX512-VNNI.

oneDNN spends 30 us on each call and quantising rows takes five more, which is half the time of a
small model's step. This kernel does both at once, at the memory's speed, and gives the same bits;
where there is AMX, sixteen rows take the time of one.
For many rows it quantises alone, in one pass where torch needs six. Without a C compiler or those
instructions there is none, and oneDNN and torch do the work. Knows nothing about layers.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from marslm.models.compiled import load_library
from marslm.models.huge_pages import HugePages

_SOURCE = Path(__file__).with_suffix(".c")

MOST_ROWS = 64
"""Beyond so many rows oneDNN's blocks are faster."""

_PAGES = HugePages()
"""Weights lie in the order in which they are packed, which is that of the layers."""

BLOCK = 16
"""Sizes of matrices are multiples of this."""


class Matrix(ctypes.Structure):
    """The C structure of the same name: where a packed weight lies."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("levels", "steps", "bias")),
        *((name, c_int64) for name in ("inputs", "outputs")),
    ]


class Rows(ctypes.Structure):
    """The C structure of the same name: where quantised rows lie."""

    _fields_: ClassVar = [(name, c_void_p) for name in ("levels", "steps", "offsets")]


def can_run(weight: Tensor) -> bool:
    """Return whether the kernel takes a weight [out, in] of this shape, and is there at all."""
    return not any(size % BLOCK for size in weight.shape) and _library() is not None


@dataclass(frozen=True)
class Levels:
    """A weight [out, in] as int8 `levels` times `steps` [out]."""

    levels: Tensor
    steps: Tensor

    def packed(self) -> Tensor:
        """Return the levels as the kernel reads them: unsigned, in blocks of 16 outputs."""
        outputs, inputs = self.levels.shape
        blocks = self.levels.view(outputs // BLOCK, BLOCK, inputs // 4, 4).transpose(1, 2)
        return _PAGES.copy(blocks.to(torch.int16).add_(128).to(torch.uint8))


class Packed:
    """A weight as the kernel reads it. `matrix` says where it lies, as long as this lives."""

    def __init__(self, weight: Levels, bias: Tensor | None = None) -> None:
        """Pack it; bias: [out]."""
        self._kept = (weight.packed(), weight.steps.contiguous(), bias)
        places = [0 if each is None else each.data_ptr() for each in self._kept]
        self.outputs, self.inputs = weight.levels.shape
        self.matrix = Matrix(*places, self.inputs, self.outputs)


class Scratch:
    """Room for the levels, steps and offsets of quantised rows. `rows` says where it lies."""

    def __init__(self, inputs: int, rows: int = MOST_ROWS) -> None:
        """Take room for `rows` rows of `inputs`."""
        levels = torch.empty(rows * inputs, dtype=torch.int8)
        self._kept = (levels, torch.empty(rows), torch.empty(rows, dtype=torch.int32))
        self.rows = Rows(*(each.data_ptr() for each in self._kept))


class Product:
    """x [up to MOST_ROWS, in] -> x @ weight.T + bias, rows quantised each by itself."""

    def __init__(self, weight: Levels, bias: Tensor | None) -> None:
        """Pack the weight."""
        self._run = _loaded().marslm_int8_linear
        self.weight = Packed(weight, bias)
        self._scratch = Scratch(self.weight.inputs)
        self._places = ctypes.byref(self.weight.matrix), ctypes.byref(self._scratch.rows)

    def __call__(self, x: Tensor) -> Tensor:
        """Return a new [rows, out]."""
        x = x.contiguous()
        y = x.new_empty(len(x), self.weight.outputs)
        weight, scratch = self._places
        threads = torch.get_num_threads()
        self._run(x.data_ptr(), weight, y.data_ptr(), scratch, len(x), threads)
        return y


class Update:
    """y += (x @ down.T) @ up.T for up to MOST_ROWS rows, in place."""

    def __init__(self, down: Levels, up: Levels) -> None:
        """Pack both matrices."""
        self._run = _loaded().marslm_int8_update
        self.down, self.up = Packed(down), Packed(up)
        self._low = torch.empty(MOST_ROWS * self.up.inputs)
        self._scratch = Scratch(max(self.down.inputs, self.up.inputs))
        structures = (self.down.matrix, self.up.matrix, self._scratch.rows)
        self._places = [ctypes.byref(each) for each in structures]

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y [rows, out]; both are contiguous."""
        down, up, scratch = self._places
        threads = torch.get_num_threads()
        places = (x.data_ptr(), down, up, y.data_ptr(), self._low.data_ptr(), scratch)
        self._run(*places, len(x), threads)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [R, in] as int8 levels [R, in] and steps [R, 1]."""
    x = x.contiguous()
    levels, steps = torch.empty_like(x, dtype=torch.int8), x.new_empty(len(x), 1)
    offsets = torch.empty(len(x), dtype=torch.int32)
    rows = Rows(levels.data_ptr(), steps.data_ptr(), offsets.data_ptr())
    threads = torch.get_num_threads()
    _loaded().marslm_int8_rows(x.data_ptr(), ctypes.byref(rows), *x.shape, threads)
    return levels, steps


def _loaded() -> ctypes.CDLL:
    library = _library()
    assert library is not None
    return library


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled kernel, None if this machine cannot have it."""
    if not torch.cpu.get_capabilities().get("avx512_vnni"):
        return None
    return load_library(
        _SOURCE, marslm_int8_rows=(2, 3), marslm_int8_linear=(4, 2), marslm_int8_update=(6, 2)
    )
