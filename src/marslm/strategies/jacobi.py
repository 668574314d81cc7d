"""`jacobi`: solve for the next tokens by fixed-point iteration (Santilli et al., arXiv 2305.10427).

Training-free. A step feeds guesses for the next tokens; the model's choices at their places are the
next guesses, and those that did not change from the left are final. With block "full" the whole
rest of the answer is guessed. Knows nothing about masks.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from marslm.core.verify import matching_prefix
from marslm.runtime.logits import Logits
from marslm.runtime.sampling import choose
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy


class Jacobi(Strategy):
    """Guess, and correct all guesses at once."""

    name = "jacobi"
    exact = True
    takes_full_block = True

    def __init__(self, facts: EngineFacts) -> None:
        """Need nothing of the engine."""

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return B-1 guesses: what is left of the last step's, then the last token again."""
        return [
            Window(_guesses(sequence, each.block - 1))
            for sequence, each in zip(sequences, settings, strict=True)
        ]

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the guesses that stayed as they were, and the choice after them."""
        choices = choose(logits, sequence)
        kept = matching_prefix(window.tokens, choices)
        sequence.state = choices[kept + 1 :]
        return Outcome(choices[: kept + 1], kept)


def _guesses(sequence: Sequence, count: int) -> list[int]:
    written = len(sequence.tokens) - sequence.prompt_length
    count = min(count, sequence.params.max_new_tokens - written - 1)
    guesses: list[int] = list(sequence.state or [])[:count]
    return guesses + sequence.tokens[-1:] * (count - len(guesses))
