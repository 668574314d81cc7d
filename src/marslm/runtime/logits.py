"""The logits of a step, request by request, with what greedy requests read of them.

On a GPU every number that Python reads waits for all the work before it. So the likeliest tokens
and their probabilities are read there once for all rows of a step, when the first request asks;
on a CPU, where waiting costs nothing, only for the rows that are asked for. Knows nothing about
requests.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from functools import cached_property

import torch
from torch import Tensor


class _Reading:
    """What is read of all rows of a step."""

    def __init__(self, parts: ListOf[Tensor]) -> None:
        self._parts = parts

    @cached_property
    def _rows(self) -> Tensor:
        return torch.cat(list(self._parts))

    @cached_property
    def best(self) -> list[int]:
        """The likeliest token of each row."""
        found: list[int] = self._rows.argmax(-1).tolist()
        return found

    @cached_property
    def probabilities(self) -> list[float]:
        """Their probabilities."""
        rows = widened(self._rows)
        found: list[float] = (rows.amax(-1) - rows.logsumexp(-1)).exp().tolist()
        return found


class Logits:
    """Logits [R, V] of one request's rows; a slice of them is of the same kind.

    tensor: they themselves. together: whether the likeliest tokens are read for the whole step.
    """

    def __init__(self, tensor: Tensor, reading: _Reading | None = None, first: int = 0) -> None:
        """`reading`: of the step, whose row `first` is the first of these."""
        self.tensor = tensor
        self._reading = reading
        self._first = first

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: slice) -> Logits:
        start, _, stride = rows.indices(len(self))
        assert stride == 1
        return Logits(self.tensor[rows], self._reading, self._first + start)

    @property
    def together(self) -> bool:
        """Whether the likeliest tokens are read for the whole step."""
        return self._reading is not None

    def best(self) -> list[int]:
        """Return the likeliest token of each row."""
        if self._reading is None:
            found: list[int] = self.tensor.argmax(-1).tolist()
            return found
        return self._reading.best[self._first : self._first + len(self)]

    def best_probabilities(self) -> list[float]:
        """Return those tokens' probabilities; only where they are read `together`."""
        assert self._reading is not None
        return self._reading.probabilities[self._first : self._first + len(self)]


def logits_of_step(parts: ListOf[Tensor], *, together: bool | None = None) -> list[Logits]:
    """Return each request's logits, given as [R, V].

    together: whether to read once for all of them; by default wherever they are not on a CPU.
    """
    if together is None:
        together = any(part.device.type != "cpu" for part in parts)
    reading = _Reading(parts) if together else None
    found, first = [], 0
    for part in parts:
        found.append(Logits(part, reading, first))
        first += len(part)
    return found


def widened(scores: Tensor) -> Tensor:
    """Return scores in float32, or float64 if they are."""
    return scores if scores.dtype == torch.float64 else scores.float()
