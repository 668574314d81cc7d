"""`medusa`: extra heads guess the next tokens from one state, and the model judges them.

Only the heads' best chain is judged, without the paper's tree of candidates (arXiv 2401.10774,
section 2.1.2), so that it is compared with masks on equal terms. Knows nothing about how heads were
trained.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import torch
from torch import Tensor

from marslm.errors import InputError
from marslm.runtime.logits import Logits
from marslm.runtime.sampling import draw
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings
from marslm.strategies.verifying import Verifying


class Medusa(Verifying):
    """Drafts from the state that chose the last token; a request's state is that vector."""

    name = "medusa"

    def __init__(self, facts: EngineFacts) -> None:
        """Take the model's heads; InputError if it has none."""
        if facts.model.heads is None:
            raise InputError(
                f"{facts.model.name} has no Medusa heads: name a folder that "
                "`marslm tune --mode medusa` wrote as the adapter"
            )
        self._heads = facts.model.heads
        self._mask_token_id = facts.model.mask_token_id
        self._hidden: dict[int, Tensor] = {}

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return the heads' guesses, at most B-1; none at a request's first step."""
        known = [sequence for sequence in sequences if sequence.state is not None]
        logits = self._guess([sequence.state for sequence in known])
        guesses = {
            sequence.number: draw(rows, sequence).tokens
            for sequence, rows in zip(known, logits, strict=True)
        }
        return [
            Window(guesses.get(sequence.number, [])[: each.block - 1])
            for sequence, each in zip(sequences, settings, strict=True)
        ]

    def read_hidden(self, sequence: Sequence, hidden: Tensor) -> None:
        """Keep the states until it is known which of them chose the last token."""
        self._hidden[sequence.number] = hidden

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the guesses that the model chooses too, and the state that chose the token after."""
        outcome = super().accept(sequence, window, logits, settings)
        sequence.state = self._hidden.pop(sequence.number)[outcome.kept].clone()
        return outcome

    @torch.inference_mode()
    def _guess(self, states: ListOf[Tensor]) -> ListOf[Tensor]:
        """Return for each state the heads' logits [heads, V], all states in one product a head."""
        if not states:
            return []
        hidden = torch.stack(list(states))
        heads = range(1, len(self._heads) + 1)
        logits = torch.stack([self._heads.logits(hidden, head) for head in heads], dim=1)
        logits[..., self._mask_token_id] = -torch.inf
        return list(logits)
