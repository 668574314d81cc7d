"""Keeps two losses at the same size: the weight of L_AR follows L_mask / L_AR.

The ratio is of running means over optimiser steps, so micro-batches and ranks cannot change it.
Knows nothing about what the losses measure.
"""

from __future__ import annotations

_MEMORY = 0.9
"""Share of the running means that one step leaves."""

_LEAST, _MOST = 0.1, 10.0
"""A loss near zero must not take over the other's gradient."""


class Balance:
    """Running means of two losses, none at first; they are part of a checkpoint."""

    means: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """What to multiply the second loss with."""
        if not self.means or self.means[1] <= 0:
            return 1.0
        return min(_MOST, max(_LEAST, self.means[0] / self.means[1]))

    def hear(self, first: float, second: float) -> None:
        """Take in the two losses of one optimiser step."""
        old = self.means or (first, second)
        self.means = (
            _MEMORY * old[0] + (1 - _MEMORY) * first,
            _MEMORY * old[1] + (1 - _MEMORY) * second,
        )
