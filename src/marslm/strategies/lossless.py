"""Self-verified decoding, `lossless`: several tokens a step and exactly the one-token output.

Chain form (METHOD section 3): a step feeds [last token, drafts, masks]. The rows at the drafts are
one-token rows, so the drafts that equal what those rows choose are kept and one more token is free;
new drafts are read from the masks, which stand right after the last draft and so are of use only if
every draft was kept. Knows nothing about tau.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import torch
from torch import Tensor

from marslm.core.accept import probability
from marslm.core.verify import matching_prefix
from marslm.runtime.sampling import choose, process
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy

MIN_DRAFT_CONFIDENCE = 0.2
"""Drafts end before the first one less likely than this. A rejected draft costs the next step its
drafts, so drafting pays from about half the mean acceptance on: with one draft of acceptance c a
step brings 2 / (2 - c) tokens, and the break-even confidence is c / 2."""


class Lossless(Strategy):
    """Draft from masks, verify for free in the next step."""

    name = "lossless"
    exact = True

    def __init__(self, facts: EngineFacts) -> None:
        """Remember which token is [MASK]."""
        self._mask_token_id = facts.model.mask_token_id

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return the drafts that the last step left, then B-1 masks."""
        return [
            Window([*(sequence.state or []), *[self._mask_token_id] * (each.block - 1)])
            for sequence, each in zip(sequences, settings, strict=True)
        ]

    def accept(
        self, sequence: Sequence, window: Window, logits: Tensor, settings: StepSettings
    ) -> Outcome:
        """Keep the verified drafts and the free token; leave new drafts for the next step."""
        drafts = [token for token in window.tokens if token != self._mask_token_id]
        position = len(sequence.tokens)
        choices = choose(logits[: len(drafts) + 1], sequence.params, position)
        kept = matching_prefix(drafts, choices)
        sequence.state = (
            self._read_drafts(sequence, logits[len(drafts) + 1 :], position + kept + 1)
            if kept == len(drafts)
            else []
        )
        return Outcome(choices[: kept + 1], kept)

    def _read_drafts(self, sequence: Sequence, logits: Tensor, position: int) -> list[int]:
        """Return the likely drafts in the mask rows `logits`, the first one at `position`."""
        if len(logits) == 0:
            return []
        drafts = choose(logits, sequence.params, position)
        likely = probability(
            process(logits, sequence.params), torch.tensor(drafts, device=logits.device)
        )
        unlikely = torch.nonzero(likely < MIN_DRAFT_CONFIDENCE).flatten().tolist()
        return drafts[: unlikely[0]] if unlikely else drafts
