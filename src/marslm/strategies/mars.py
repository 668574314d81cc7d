"""The paper's decoding, `mars`: a sliding window of masks and a confidence threshold (section 3).

Each step feeds the accepted tokens and B-1 masks, reads B candidates, and keeps those from the left
whose confidence reaches tau. The keys and values of masks are never kept. Knows nothing about
verification.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import torch
from torch import Tensor

from marslm.core.accept import CONFIDENCES, accepted_prefix
from marslm.core.forms import MARS
from marslm.runtime.sampling import choose, process
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy


class Mars(Strategy):
    """Accept confident candidates unverified: fast, and as exact as tau is high."""

    name = "mars"
    exact = False

    def __init__(self, facts: EngineFacts) -> None:
        """Remember which token is [MASK], and the form of a block that the model was trained in."""
        self._mask_token_id = facts.model.mask_token_id
        self._form = facts.model.record.form if facts.model.record else MARS

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
        if settings.tau >= 1 and not (own and self._form.bidirectional):
            return int(own)
        return self._form.window(settings.block)

    def accept(
        self, sequence: Sequence, window: Window, logits: Tensor, settings: StepSettings
    ) -> Outcome:
        """Keep the confident prefix of the candidates, the first one always."""
        if self._form.alignment == "own" and len(window):
            logits = logits[1:]
        params = sequence.params
        tokens = choose(logits, params, len(sequence.tokens))
        if len(tokens) == 1:
            return Outcome(tokens)
        confidence = CONFIDENCES[params.confidence](
            process(logits, params), torch.tensor(tokens, device=logits.device)
        )
        return Outcome(tokens[: accepted_prefix(confidence, settings.tau)])
