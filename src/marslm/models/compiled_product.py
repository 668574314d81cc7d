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
import threading
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

import torch
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

MOST_PARTS = 4
"""Matrices that may be fused where they have updates."""


class Matrix(ctypes.Structure):
    """The C structure of the same name: where a packed weight lies."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("weights", "steps", "bias")),
        *((name, c_int64) for name in ("inputs", "outputs")),
    ]


class LowRankUpdate(ctypes.Structure):
    """The C structure `Update`: where an update's matrices lie, and which outputs read what."""

    _fields_: ClassVar = [
        *((name, Matrix) for name in ("down", "up")),
        ("parts", c_int64),
        ("edges", c_int64 * MOST_PARTS),
    ]


class Rows(ctypes.Structure):
    """The C structure of the same name: where prepared rows lie."""

    _fields_: ClassVar = [(name, c_void_p) for name in ("values", "steps", "offsets")]


def can_run(weight: Tensor) -> bool:
    """Return whether the kernels take a weight [out, in] of this shape, and are there at all."""
    return not any(size % BLOCK for size in weight.shape) and _library() is not None


def can_update(down: Tensor, up: Tensor, edges: Sequence[int]) -> bool:
    """Return whether the kernels take an update with these parts."""
    in_blocks = len(edges) <= MOST_PARTS and not any(edge % BLOCK for edge in edges)
    return in_blocks and can_run(down) and can_run(up)


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


def constant(name: str) -> int:
    """Return what the kernels were compiled with: level_depth, level_offset, piece, most_parts."""
    return c_int.in_dll(_loaded(), f"marslm_{name}").value


def makes_bytes() -> bool:
    """Return whether `quantise_rows` can be had: levels of rows are bytes only with VNNI."""
    library = _library()
    return library is not None and constant("level_offset") != 0


def _packed_levels(levels: Tensor) -> Tensor:
    offset = constant("level_offset")
    blocks = _in_blocks(levels, constant("level_depth"))
    return blocks.to(torch.int16).add_(offset).to(torch.uint8) if offset else blocks


def _in_blocks(weight: Tensor, depth: int) -> Tensor:
    """Return [out, in] as [out / BLOCK, in / depth, BLOCK, depth]."""
    outputs, inputs = weight.shape
    return weight.reshape(outputs // BLOCK, BLOCK, inputs // depth, depth).transpose(1, 2)


class Scratch:
    """Room for prepared rows. `rows` says where it lies."""

    def __init__(self, inputs: int, parts: int = 1) -> None:
        """Take room for MOST_ROWS rows of `inputs`, as floats or as narrower levels.

        parts: pieces of a row that have steps of their own.
        """
        rows = MOST_ROWS * parts
        values, steps = torch.empty(MOST_ROWS * inputs), torch.empty(rows)
        self._kept = (values, steps, torch.empty(rows, dtype=torch.int32))
        self.rows = Rows(*(each.data_ptr() for each in self._kept))


class _Room(threading.local):
    """A thread's scratch, as large as its largest product needs: no two calls share it."""

    def __init__(self) -> None:
        self._inputs = self._parts = 0

    def lend(self, inputs: int, parts: int = 1) -> ctypes._CArgObject:
        """Return where there is room for a product; it is free again after the call."""
        if inputs > self._inputs or parts > self._parts:
            self._inputs, self._parts = max(inputs, self._inputs), max(parts, self._parts)
            self._scratch = Scratch(self._inputs, self._parts)
            self._place = ctypes.byref(self._scratch.rows)
        return self._place


_ROOM = _Room()


class Product:
    """x [rows, in] -> x @ weight.T + bias. Threads may call it at once."""

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        """Pack the weight."""
        self._run = _loaded().marslm_linear
        self.weight = Packed(weight, bias)
        self._matrix = ctypes.byref(self.weight.matrix)

    def __call__(self, x: Tensor) -> Tensor:
        """Return a new [rows, out]."""
        x = x.contiguous()
        y = x.new_empty(len(x), self.weight.outputs)
        scratch = _ROOM.lend(self.weight.inputs)
        threads = torch.get_num_threads()
        self._run(x.data_ptr(), self._matrix, y.data_ptr(), scratch, len(x), threads)
        return y


class Update:
    """y [rows, out] += the low-rank update of x [rows, in], in place.

    down: [parts * rank, in]. up: [out, rank]; its outputs from edges[p] on, up to the next edge,
    read the p-th `rank` columns of x @ down.T.
    """

    def __init__(self, down: Weight, up: Weight, edges: Sequence[int]) -> None:
        """Pack both matrices; at most MOST_PARTS edges, multiples of BLOCK, the first one 0."""
        self._run = _loaded().marslm_update
        self._down, self._up = Packed(down), Packed(up)
        self.ranks = self._down.outputs
        self.structure = LowRankUpdate(self._down.matrix, self._up.matrix, len(edges))
        self.structure.edges[: len(edges)] = edges
        self._update = ctypes.byref(self.structure)

    def __call__(self, y: Tensor, x: Tensor) -> None:
        """Add to y; both are contiguous."""
        scratch = _ROOM.lend(max(self._down.inputs, self.ranks), self.structure.parts)
        low = x.new_empty(len(x), self.ranks)
        threads = torch.get_num_threads()
        places = (x.data_ptr(), self._update, y.data_ptr(), low.data_ptr(), scratch)
        self._run(*places, len(x), threads)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [R, in] as int8 levels [R, in] and steps [R, 1]; only if `makes_bytes`."""
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
        _SOURCE, marslm_level_rows=(2, 3), marslm_linear=(4, 2), marslm_update=(5, 2)
    )
