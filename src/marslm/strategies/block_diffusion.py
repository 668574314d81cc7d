"""The paper's baseline, `block_diffusion`: a block of masks is filled in most confident first.

Each step feeds the last token and the block's cells, filled ones as themselves and the others as
[MASK], and fills the cells whose confidence reaches tau, the most confident one always. The block
is committed when it is full; until then a step brings no tokens. A block's keys and values are
computed once more when it is fed as text. Serves every form of a block whose order is "confidence"
(`core/forms`). Knows nothing about left-to-right acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from marslm.core.accept import threshold
from marslm.errors import InputError
from marslm.runtime.logits import Logits
from marslm.runtime.sampling import choose, draw
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy


class BlockDiffusion(Strategy):
    """Fill a block in any order; `sequence.state` holds its cells, None where masked."""

    name = "block_diffusion"
    exact = False
    reads_masks = True
    # Cells are not filled in the order of the text that these would read.
    refuses = frozenset(
        {
            *("repetition_penalty", "frequency_penalty", "presence_penalty"),
            *("regex", "json_schema", "logprobs"),
        }
    )

    def __init__(self, facts: EngineFacts) -> None:
        """Remember the form; InputError for a model that was not trained to fill blocks."""
        record = facts.model.record
        if record is None or record.order != "confidence":
            raise InputError(
                f"{facts.model.name} was not trained to fill blocks in any order: train one with "
                "`marslm tune --objective block_diffusion`, or use another strategy"
            )
        self._form = record.form
        self._mask_token_id = facts.model.mask_token_id

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return each request's block as it stands."""
        windows = []
        for sequence, each in zip(sequences, settings, strict=True):
            cells = sequence.state or [None] * each.block
            tokens = [self._mask_token_id if token is None else token for token in cells]
            windows.append(Window(tokens, bidirectional=self._form.bidirectional))
        return windows

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Fill what is confident; hand the block over when it is full."""
        cells: list[int | None] = (sequence.state or [None] * len(window))[: len(window)]
        if not cells:  # the text's limit leaves no room for a block
            return Outcome(choose(logits[:1], sequence))
        rows = logits[1:] if self._form.alignment == "own" else logits[:-1]
        draws = draw(rows, sequence)
        tokens = draws.tokens
        confidence = draws.confidences(sequence.params.confidence)
        masked = [place for place, token in enumerate(cells) if token is None]
        best = max(masked, key=lambda place: confidence[place])
        for place in masked:
            tau = threshold(settings.tau, place)
            if place == best or (tau < 1 and confidence[place] >= tau):
                cells[place] = tokens[place]
        filled = [token for token in cells if token is not None]
        if len(filled) < len(cells):
            sequence.state = cells
            return Outcome([])
        sequence.state = None
        return Outcome(filled)

    def release(self, sequence: Sequence) -> None:
        """Nothing is held outside the sequence."""
