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
from marslm.runtime.sampling import choose, process
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy


class Mars(Strategy):
    """Accept confident candidates unverified: fast, and as exact as tau is high."""

    name = "mars"
    exact = False

    def __init__(self, facts: EngineFacts) -> None:
        """Remember which token is [MASK]."""
        self._mask_token_id = facts.model.mask_token_id

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return B-1 masks; none at tau = 1, where only the first candidate can be kept."""
        return [
            Window([self._mask_token_id] * (each.block - 1 if each.tau < 1 else 0))
            for each in settings
        ]

    def accept(
        self, sequence: Sequence, window: Window, logits: Tensor, settings: StepSettings
    ) -> Outcome:
        """Keep the confident prefix of the candidates, the first one always."""
        params = sequence.params
        tokens = choose(logits, params, len(sequence.tokens))
        if len(tokens) == 1:
            return Outcome(tokens)
        confidence = CONFIDENCES[params.confidence](
            process(logits, params), torch.tensor(tokens, device=logits.device)
        )
        return Outcome(tokens[: accepted_prefix(confidence, settings.tau)])
