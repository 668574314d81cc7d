"""What all strategies share that guess the next tokens somehow and let the model judge them.

A window of guesses is a chain, and attention is causal, so the row at each guess is the one-token
row for the text up to it: those that equal the model's own choice are kept and the choice after
them is free. Knows nothing about where guesses come from.
"""

from __future__ import annotations

from marslm.core.verify import matching_prefix
from marslm.runtime.logits import Logits
from marslm.runtime.sampling import choose
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import Outcome, StepSettings, Strategy


class Verifying(Strategy):
    """Guesses in, one-token decoding's own tokens out; a subclass says what to guess."""

    exact = True

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the guesses that the model chooses too, and its choice after them."""
        choices = choose(logits, sequence)
        kept = matching_prefix(window.tokens, choices)
        return Outcome(choices[: kept + 1], kept)
