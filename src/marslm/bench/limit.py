"""How near decoding comes to what this machine can do, and what further rows of a step cost.

A step of one row reads every weight once and computes next to nothing, so it cannot take less time
than the memory needs to deliver the weights. Bandwidth and steps are measured in turns, so that a
slow minute of the machine falls on all of them. Knows nothing about files or tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from marslm.models.loading import MarsModel
from marslm.models.quantize import Quantize
from marslm.report import Row
from marslm.runtime.decoder import Decoder
from marslm.runtime.runner import Runner
from marslm.runtime.window import Window
from marslm.runtime.work import Work

_READ_BYTES = 1 << 30
_MATRIX = 1024
_EXTRA_ROWS = (0, 4, 8)
_WIDTHS: dict[Quantize, int] = {"none": 0, "bf16": 2, "int8": 1}
"""Bytes of a weight; 0: as loaded."""


@dataclass(frozen=True)
class _Step:
    """One kind of step that is timed. kind: what its extra rows are."""

    quantize: Quantize
    kind: str
    extra: int


class LimitBench:
    """Times steps of one request at `context` tokens; `rows` reports."""

    def __init__(self, model: MarsModel, kinds: Sequence[Quantize], *, context: int = 256) -> None:
        """`kinds`: of weights, each with a decoder of its own."""
        self._model = model
        self._prompt = [token % 256 for token in range(context)]
        self._runners = {kind: self._runner(replace(model, quantize=kind)) for kind in kinds}
        self._steps = [
            _Step(quantize, kind, extra)
            for quantize in kinds
            for kind in ("drafts", "masks")
            for extra in _EXTRA_ROWS
        ]
        self._seconds: dict[_Step, list[float]] = {step: [] for step in self._steps}
        self._bandwidths: list[float] = []
        self._matrix_rates: list[float] = []

    def run(self, rounds: int, done: Callable[[int], None] = lambda count: None) -> None:
        """Measure everything `rounds` times, in turns; `done` hears how many are."""
        memory, matrix = torch.ones(_READ_BYTES // 4), torch.randn(_MATRIX, _MATRIX)
        for count in range(rounds):
            self._bandwidths.append(_READ_BYTES / _seconds(memory.sum))
            self._matrix_rates.append(2 * _MATRIX**3 / _seconds(lambda: matrix @ matrix))
            for step in self._steps:
                self._seconds[step].append(self._time(step))
            done(count + 1)

    def rows(self) -> list[tuple[Quantize, Row]]:
        """Return one row for each kind of weights and of extra rows, with the kind of weights."""
        keys = dict.fromkeys((step.quantize, step.kind) for step in self._steps)
        return [(quantize, self._row(quantize, kind)) for quantize, kind in keys]

    def _row(self, quantize: Quantize, kind: str) -> Row:
        one, four, eight = (self._seconds[_Step(quantize, kind, extra)] for extra in _EXTRA_ROWS)
        weights = weight_bytes(self._model, quantize)
        limits = [weights / bandwidth for bandwidth in self._bandwidths]
        return {
            "quantize": quantize,
            "extra_rows": kind,
            "seconds": statistics.median(one),
            "limit_seconds": statistics.median(limits),
            "fraction_of_limit": _median_ratio(limits, one),
            "cost_4_extra_rows": _median_ratio(four, one),
            "cost_8_extra_rows": _median_ratio(eight, one),
            "weight_bytes": weights,
            "bytes_per_second": statistics.median(self._bandwidths),
            "float32_operations_per_second": statistics.median(self._matrix_rates),
            "threads": torch.get_num_threads(),
            "rounds": len(one),
        }

    def _runner(self, model: MarsModel) -> Runner:
        decoder = Decoder(model, max_length=len(self._prompt) + 1 + max(_EXTRA_ROWS))
        runner = Runner(decoder, decoder.new_cache(1), model.mask_token_id)
        runner.forward([Work(0, 0, self._prompt, Window(), 1)])
        return runner

    def _time(self, step: _Step) -> float:
        token = self._model.mask_token_id if step.kind == "masks" else self._prompt[0]
        work = Work(
            0, len(self._prompt), self._prompt[:1], Window([token] * step.extra), 1 + step.extra
        )
        runner = self._runners[step.quantize]
        runner.forward([work])  # what the caches hold is then this step's own
        return _seconds(lambda: runner.forward([work]))


def weight_bytes(model: MarsModel, quantize: Quantize) -> int:
    """Return the bytes of weights that one step reads: every linear layer and the head."""
    linears = [m for m in model.network.modules() if isinstance(m, nn.Linear)]
    width = _WIDTHS[quantize] or model.network.dtype.itemsize
    return sum(linear.weight.numel() for linear in linears) * width


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
