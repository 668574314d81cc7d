"""One token a step: `ar`, the baseline that exact strategies must equal.

Knows nothing about masks.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from marslm.runtime.logits import Logits
from marslm.runtime.sampling import choose
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy


class Autoregressive(Strategy):
    """Feed the pending tokens, take the next one."""

    name = "ar"
    exact = True

    def __init__(self, facts: EngineFacts) -> None:
        """Need nothing of the engine."""

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return empty windows."""
        return [Window()] * len(sequences)

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Take the one token there is."""
        return Outcome(choose(logits, sequence))
