"""The paper's decoding, `mars`: a sliding window of masks and a confidence threshold (section 3).

Each step feeds the accepted tokens and B-1 masks, reads B candidates, and keeps those from the left
whose confidence reaches tau. The keys and values of masks are never kept. Knows nothing about
verification.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from marslm.core.accept import Tau, accepted_prefix, useful_masks
from marslm.core.forms import MARS
from marslm.runtime.logits import Logits
from marslm.runtime.params import SamplingParams
from marslm.runtime.sampling import Draws, draw
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy


class Mars(Strategy):
    """Accept confident candidates unverified: fast, and as exact as tau is high."""

    name = "mars"
    exact = False
    reads_masks = True

    def __init__(self, facts: EngineFacts) -> None:
        """Remember which token is [MASK], and the form of a block that the model was trained in."""
        self._mask_token_id = facts.model.mask_token_id
        self._form = facts.model.record.form if facts.model.record else MARS
        if self._form.alignment == "own":  # token i is drawn from row i + 1
            self.refuses = frozenset({"logprobs"})

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return B-1 masks; none at tau = 1, where only the first candidate can be kept.

        Where a mask predicts its own position there is one for each candidate, and where masks see
        those after them the window is always whole, as in training.
        """
        return [
            Window(
                [self._mask_token_id] * self._masks(each), bidirectional=self._form.bidirectional
            )
            for each in settings
        ]

    def _masks(self, settings: StepSettings) -> int:
        own = self._form.alignment == "own"
        useful = useful_masks(settings.tau, settings.block - 1)
        if self._form.bidirectional and (own or useful):
            return self._form.window(settings.block)
        return useful + own

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the confident prefix of the candidates, the first one always."""
        if self._form.alignment == "own" and len(window):
            logits = logits[1:]
        draws = draw(logits, sequence)
        return Outcome(draws.tokens[: confident_prefix(draws, sequence.params, settings.tau)])


def confident_prefix(draws: Draws, params: SamplingParams, tau: Tau) -> int:
    """Return how many of a step's candidates to keep: the first, and from the left those above tau.

    The request says what its confidence is.
    """
    if len(draws.tokens) == 1:
        return 1
    return accepted_prefix(draws.confidences(params.confidence), tau)
