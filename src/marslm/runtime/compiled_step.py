"""All layers of a step in one compiled call, for float32 and int8 weights on a CPU.

A step of one row of a small model makes thirty calls to torch in each layer, which together take
longer than the memory needs for the weights. Here few rows go through all layers in C; for many, C
does what lies between the products, which are then calls of their own. Both give a row the same
bits, and these follow from the row and what it sees: not from the step's other rows, nor the number
of threads, nor the steps in which a text was read. Knows nothing about what window entries mean.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence as ListOf
from ctypes import byref
from pathlib import Path

import torch
from torch import Tensor

from marslm.models.compiled import load_library
from marslm.models.compiled_product import BLOCK, MOST_ROWS, Scratch
from marslm.runtime.cache import SlotCache
from marslm.runtime.compiled_layout import TREE_BITS, CModel, CStep, fits, model_of, step_of
from marslm.runtime.decoder import Decoder
from marslm.runtime.layers import RowIndex, as_index
from marslm.runtime.work import Work, mask_rows, output_rows

_SOURCE = Path(__file__).with_suffix(".c")

_MOST_PARTS = 1 << 24
"""Floats of room for what rows read in each span: 64 MB."""


def compiled_step(decoder: Decoder, cache: SlotCache, mask_token_id: int) -> CompiledStep | None:
    """Return the compiled layers of `decoder` over `cache`, None if they cannot be had."""
    library = _library() if fits(decoder) else None
    return None if library is None else CompiledStep(library, decoder, cache, mask_token_id)


class CompiledStep:
    """Runs steps in C."""

    def __init__(
        self, library: ctypes.CDLL, decoder: Decoder, cache: SlotCache, mask_token_id: int
    ) -> None:
        """Tell C where everything lies."""
        self._library, self._decoder, self._cache = library, decoder, cache
        self._mask_token_id = mask_token_id
        self._model = model_of(decoder, cache)
        self._room = _Room(self._model)

    @torch.inference_mode()
    def hidden(self, works: ListOf[Work]) -> Tensor | None:
        """Return the last states [outputs, hidden] of the works in turn, None for a larger tree."""
        if any(len(work.window.parents or ()) > TREE_BITS for work in works):
            return None
        decoder = self._decoder
        masks = mask_rows(works, self._mask_token_id) if decoder.changes_masks else []
        index = as_index(masks, decoder.device) if masks else None
        x = decoder.embed(torch.tensor([token for work in works for token in work.tokens]), index)
        self.run_layers(step_of(works, x, masks), x, index)
        return decoder.final_norm(x[as_index(output_rows(works), decoder.device)])

    def run_layers(self, step: CStep, x: Tensor, masks: RowIndex | None) -> None:
        """Take x [rows, hidden] through all layers, in place; masks: rows that get the update."""
        if len(x) > MOST_ROWS:
            self._run_many(step, x, masks)
            return
        self._room.lend(step)
        self._library.marslm_step(byref(self._model), byref(step), torch.get_num_threads())

    def _run_many(self, step: CStep, x: Tensor, masks: RowIndex | None) -> None:
        """Leave the products to the layers themselves."""
        model, rows, threads = self._model, len(x), torch.get_num_threads()
        narrow = x.new_empty(rows * _widest_input(model))
        step.narrow = narrow.data_ptr()
        places = byref(model), byref(step)

        def inputs(size: int) -> Tensor:
            return narrow[: rows * size].view(rows, size)

        normed, mixed = inputs(model.hidden), inputs(model.heads * model.dim)
        active = inputs(model.inner)
        for index, layer in enumerate(self._decoder.layers):
            self._library.marslm_norm(*places, layer.attention_norm.weight.data_ptr(), threads)
            wide = layer.query_key_value(normed, masks)
            step.wide = wide.data_ptr()
            self._library.marslm_attention(*places, index, threads)
            x += layer.output(mixed, masks)
            self._library.marslm_norm(*places, layer.mlp_norm.weight.data_ptr(), threads)
            wide = layer.gate_up(normed, masks)
            step.wide = wide.data_ptr()
            self._library.marslm_activate(*places, threads)
            x += layer.down(active, masks)


class _Room:
    """What a step of few rows computes in, taken once; what grows with the context grows."""

    def __init__(self, model: CModel) -> None:
        """Take room for MOST_ROWS rows of the widest layer."""
        layers = model.layers[: model.count]
        projections = [
            each
            for layer in layers
            for each in (layer.query_key_value, layer.output, layer.gate_up, layer.down)
        ]
        ranks = max(each.update.down.outputs for each in projections)
        inputs = _widest_input(model)
        sizes = max(each.base.outputs for each in projections), inputs, ranks
        self._kept = [torch.empty(MOST_ROWS * size) for size in sizes]
        self._inputs, self._mask_inputs = Scratch(inputs), Scratch(inputs)
        self._part_size = model.heads * (model.dim + BLOCK)
        self._parts = torch.empty(0)

    def lend(self, step: CStep) -> None:
        """Let a step compute here."""
        step.wide, step.narrow, step.low = (each.data_ptr() for each in self._kept)
        step.inputs, step.mask_inputs = self._inputs.rows, self._mask_inputs.rows
        size = step.rows * step.spans * self._part_size
        if size > _MOST_PARTS:
            return  # threads then share rows, not spans
        if size > len(self._parts):
            self._parts = torch.empty(min(2 * size, _MOST_PARTS))
        step.parts = self._parts.data_ptr()


def _widest_input(model: CModel) -> int:
    return int(max(model.hidden, model.heads * model.dim, model.inner))


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled layers, None without a compiler."""
    return load_library(
        _SOURCE,
        marslm_step=(2, 1),
        marslm_norm=(3, 1),
        marslm_attention=(2, 2),
        marslm_activate=(2, 1),
    )
