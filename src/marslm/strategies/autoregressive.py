"""One token a step: `ar`, the baseline that exact strategies must equal.

Knows nothing about masks.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from torch import Tensor

from marslm.runtime.sampling import choose
from marslm.runtime.sequence import Sequence
from marslm.strategies.base import Outcome, StepSettings


class Autoregressive:
    """Feed the pending tokens, take the next one."""

    name = "ar"
    exact = True

    def propose(self, sequence: Sequence, settings: StepSettings) -> ListOf[int]:
        """Return an empty window."""
        return []

    def accept(
        self, sequence: Sequence, window: ListOf[int], logits: Tensor, settings: StepSettings
    ) -> Outcome:
        """Take the one token there is."""
        return Outcome(choose(logits, sequence.params, len(sequence.tokens)))
