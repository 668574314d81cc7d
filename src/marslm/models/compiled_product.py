"""Products compiled on first use: float32 and int8 weights, by AVX2, AVX512-VNNI or AMX.

For a few rows the libraries take longer than the memory needs for the weights: oneDNN spends 30 us
on each int8 call, and quantising rows takes five calls more; a float32 product reaches half of the
memory's speed. These kernels reach all of it, and what they give a row depends, bit for bit, on
nothing but the row. Without a C compiler or those instructions there are none, and oneDNN and torch
do the work. Knows nothing about layers.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from marslm.models.compiled import load_library
from marslm.models.huge_pages import HugePages

_SOURCE = Path(__file__).with_name("product.c")

MOST_ROWS = 64
"""Rows of a piece. Beyond so many, oneDNN's blocks are faster in int8 where there is VNNI."""

_PAGES = HugePages()
"""Weights lie in the order in which they are packed, which is that of the layers."""

BLOCK = 16
"""Sizes of matrices are multiples of this."""


class Matrix(ctypes.Structure):
    """The C structure of the same name: where a packed weight lies."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("weights", "steps", "bias")),
        *((name, c_int64) for name in ("inputs", "outputs")),
    ]


class Rows(ctypes.Structure):
    """The C structure of the same name: where prepared rows lie."""

    _fields_: ClassVar = [(name, c_void_p) for name in ("values", "steps", "offsets")]


def can_run(weight: Tensor) -> bool:
    """Return whether the kernels take a weight [out, in] of this shape, and are there at all."""
    return not any(size % BLOCK for size in weight.shape) and _library() is not None


def whole_blocks(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return down [rank, in] and up [out, rank] with the rank filled up with zeros."""
    missing = -len(down) % BLOCK
    return F.pad(down, (0, 0, 0, missing)), F.pad(up, (0, missing))


@dataclass(frozen=True)
class Levels:
    """A weight [out, in] as int8 `levels` times `steps` [out]."""

    levels: Tensor
    steps: Tensor


Weight: TypeAlias = "Levels | Tensor"
"""[out, in], in int8 or in float32."""


class Packed:
    """A weight as the kernels read it. `matrix` says where it lies, as long as this lives."""

    def __init__(self, weight: Weight, bias: Tensor | None = None) -> None:
        """Pack it; bias: [out]."""
        if isinstance(weight, Levels):
            packed, steps = _packed_levels(weight.levels), weight.steps.contiguous()
            self.outputs, self.inputs = weight.levels.shape
        else:
            packed, steps = _in_blocks(weight, depth=1), None
            self.outputs, self.inputs = weight.shape
        self._kept = (_PAGES.copy(packed), steps, bias)
        places = [0 if each is None else each.data_ptr() for each in self._kept]
        self.matrix = Matrix(*places, self.inputs, self.outputs)


def _packed_levels(levels: Tensor) -> Tensor:
    depth, offset = (
        c_int.in_dll(_loaded(), f"marslm_level_{name}").value for name in ("depth", "offset")
    )
    blocks = _in_blocks(levels, depth)
    return blocks.to(torch.int16).add_(offset).to(torch.uint8) if offset else blocks


def _in_blocks(weight: Tensor, depth: int) -> Tensor:
    """Return [out, in] as [out / BLOCK, in / depth, BLOCK, depth]."""
    outputs, inputs = weight.shape
    return weight.reshape(outputs // BLOCK, BLOCK, inputs // depth, depth).transpose(1, 2)


class Scratch:
    """Room for prepared rows. `rows` says where it lies."""

    def __init__(self, inputs: int) -> None:
        """Take room for MOST_ROWS rows of `inputs`, as floats or as narrower levels."""
        values = torch.empty(MOST_ROWS * inputs)
        self._kept = (values, torch.empty(MOST_ROWS), torch.empty(MOST_ROWS, dtype=torch.int32))
        self.rows = Rows(*(each.data_ptr() for each in self._kept))


class Product:
    """x [rows, in] -> x @ weight.T + bias."""

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        """Pack the weight."""
        self._run = _loaded().marslm_linear
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
    """y [rows, out] += (x @ down.T) @ up.T in place, for x [rows, in]."""

    def __init__(self, down: Weight, up: Weight) -> None:
        """Pack both matrices."""
        self._run = _loaded().marslm_update
        self.down, self.up = Packed(down), Packed(up)
        self._scratch = Scratch(max(self.down.inputs, self.up.inputs))
        structures = (self.down.matrix, self.up.matrix, self._scratch.rows)
        self._places = [ctypes.byref(each) for each in structures]

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y; both are contiguous."""
        down, up, scratch = self._places
        low = x.new_empty(len(x), self.up.inputs)
        threads = torch.get_num_threads()
        places = (x.data_ptr(), down, up, y.data_ptr(), low.data_ptr(), scratch)
        self._run(*places, len(x), threads)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [R, in] as int8 levels [R, in] and steps [R, 1], where the CPU has VNNI."""
    x = x.contiguous()
    levels, steps = torch.empty_like(x, dtype=torch.int8), x.new_empty(len(x), 1)
    offsets = torch.empty(len(x), dtype=torch.int32)
    rows = Rows(levels.data_ptr(), steps.data_ptr(), offsets.data_ptr())
    threads = torch.get_num_threads()
    _loaded().marslm_level_rows(x.data_ptr(), ctypes.byref(rows), *x.shape, threads)
    return levels, steps


def _loaded() -> ctypes.CDLL:
    library = _library()
    assert library is not None
    return library


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled kernels, None if this machine cannot have them."""
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx2") and capabilities.get("fma3")):
        return None
    return load_library(
        _SOURCE, marslm_level_rows=(2, 3), marslm_linear=(4, 2), marslm_update=(6, 2)
    )
