"""The least time that a step can take on a device: its memory has to be read, its products made.

Knows nothing about strategies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from marslm.bench.limit import weight_bytes
from marslm.engine.memory import bytes_per_token
from marslm.models.loading import MarsModel

_SIZES = {"cuda": (1 << 32, 8192), "cpu": (1 << 26, 512)}
"""Bytes that are read, and the side of square matrices that are multiplied."""

_ROUNDS = 5


@dataclass(frozen=True)
class Machine:
    """What a device reaches: the best of a few readings, and of a few products."""

    bytes_per_second: float
    operations_per_second: float

    def step_seconds(self, model: MarsModel, *, rows: int | float, cells: int | float) -> float:
        """Return the least time of a step of `rows` rows that sees `cells` cached tokens in all.

        The longer of reading all weights and these keys and values once, and of multiplying every
        row by every weight; attention's own products are left out.
        """
        weights = weight_bytes(model, "none")
        reading = (weights + cells * bytes_per_token(model)) / self.bytes_per_second
        operations = 2 * rows * weights / model.network.dtype.itemsize
        return max(reading, operations / self.operations_per_second)


def measure(device: torch.device, dtype: torch.dtype) -> Machine:
    """Read memory and multiply matrices of `dtype`."""
    size, side = _SIZES[device.type]
    memory = torch.ones(size // 4, device=device)
    matrix = torch.ones(side, side, device=device, dtype=dtype).normal_()
    reading = min(seconds(memory.sum, device) for _ in range(_ROUNDS))
    multiplying = min(seconds(lambda: matrix @ matrix, device) for _ in range(_ROUNDS))
    return Machine(size / reading, 2 * side**3 / multiplying)


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """Return how long an action takes until the device has finished it."""
    _finish(device)
    start = time.perf_counter()
    action()
    _finish(device)
    return time.perf_counter() - start


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
