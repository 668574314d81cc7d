"""`draft_model`: a small model guesses, the model that decodes judges (arXiv 2211.17192).

Either side may write several tokens a forward: the small model drafts from masks while its
confidence reaches its own tau (1: one token a forward), and in `draft_model-mars` the judging model
adds the candidates of its own masks, unverified, as `mars` does: the paper's table of draft and
target, 2 x 2. Draws share their noise, so a draft that is drawn agrees with its judge more often.
Knows nothing about how the judging forward is run.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marslm.core.accept import useful_masks
from marslm.core.verify import matching_prefix
from marslm.errors import InputError
from marslm.runtime.decoder import Decoder
from marslm.runtime.logits import Logits
from marslm.runtime.runner import Runner
from marslm.runtime.sampling import choose, draw
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.runtime.work import Work
from marslm.strategies.base import EngineFacts, Outcome, StepSettings
from marslm.strategies.mars import confident_prefix
from marslm.strategies.verifying import Verifying


@dataclass
class _Drafting:
    """The small model's part in one request: its cache's slot and cursor, and this step's drafts.

    num_cached: leading tokens of text and drafts that are in its cache. start: length of the text
    that the drafts follow.
    """

    slot: int
    num_cached: int = 0
    start: int = 0
    drafts: list[int] = field(default_factory=list)

    def follow(self, tokens: list[int]) -> None:
        """Roll back to where the text parts from what was drafted."""
        kept = matching_prefix(self.drafts, tokens[self.start :])
        self.num_cached = min(self.num_cached, self.start + kept, len(tokens) - 1)
        self.start, self.drafts = len(tokens), []


class DraftModel(Verifying):
    """Drafts from a second model, run for all requests together over a cache of its own."""

    name = "draft_model"

    def __init__(self, facts: EngineFacts) -> None:
        """Build the small model's decoder; InputError if there is none or it reads other tokens."""
        if facts.draft is None:
            raise InputError("draft_model needs a second model: name one with --draft-model")
        side, model = facts.draft, facts.model
        if side.model.tokenizer.get_vocab() != model.tokenizer.get_vocab():
            raise InputError(
                f"{side.model.name} has another tokenizer than {model.name}; a draft model must "
                "share it"
            )
        if side.tau < 1 and side.model.record is None:
            raise InputError(
                f"{side.model.name} was not trained for several tokens a forward, so as a draft "
                "model it takes tau 1 alone"
            )
        self._tau = side.tau
        self._block = side.model.record.block_size if side.model.record and side.tau < 1 else 1
        self._mask_token_id = side.model.mask_token_id
        self._vocabulary: int = model.network.config.vocab_size
        self._max_length = min(facts.max_length, side.model.context_length)
        decoder = Decoder(side.model, max_length=self._max_length, pack=facts.pack)
        self._cache = decoder.new_cache(facts.slots)
        self._runner = Runner(decoder, self._cache, self._mask_token_id)
        self._drafting: dict[int, _Drafting] = {}

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return B-1 drafts for each request; the small model runs until everybody has them."""
        states = [self._catch_up(sequence) for sequence in sequences]
        wanted = [
            min(each.block - 1, self._max_length - len(sequence.tokens) - self._block)
            for sequence, each in zip(sequences, settings, strict=True)
        ]
        while True:
            short = [i for i, s in enumerate(states) if len(s.drafts) < wanted[i]]
            if not short:
                break
            self._draft([sequences[i] for i in short], [states[i] for i in short])
        return [
            Window(state.drafts[: max(0, count)])
            for state, count in zip(states, wanted, strict=True)
        ]

    def release(self, sequence: Sequence) -> None:
        """Free the request's slot."""
        state = self._drafting.pop(sequence.number, None)
        if state is not None:
            self._cache.release_slot(state.slot)

    def _catch_up(self, sequence: Sequence) -> _Drafting:
        """Return a request's state, rolled back to the text that was accepted."""
        if sequence.number not in self._drafting:
            self._drafting[sequence.number] = _Drafting(self._cache.take_slot())
        state = self._drafting[sequence.number]
        state.follow(sequence.tokens)
        return state

    def _draft(self, sequences: list[Sequence], states: list[_Drafting]) -> None:
        """Run one forward of the small model and append what it brings each request."""
        masks = Window([self._mask_token_id] * (self._block - 1))
        works = []
        for sequence, state in zip(sequences, states, strict=True):
            pending = [*sequence.tokens, *state.drafts][state.num_cached :]
            works.append(Work(state.slot, state.num_cached, pending, masks, self._block))
        found = self._runner.forward(works)
        for sequence, state, work, logits in zip(sequences, states, works, found, strict=True):
            state.num_cached += len(work.pending)
            draws = draw(self._as_wide(logits), sequence, state.drafts)
            state.drafts += draws.tokens[: confident_prefix(draws, sequence.params, self._tau)]

    def _as_wide(self, logits: Tensor) -> Tensor:
        """Return the small model's logits [R, V] with as many columns as the other model's."""
        missing = self._vocabulary - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


class DraftModelMars(DraftModel):
    """The judging model adds its own masks' candidates behind drafts that all held."""

    name = "draft_model-mars"
    exact = False
    reads_masks = True

    def __init__(self, facts: EngineFacts) -> None:
        """Remember which token is [MASK] to the judging model."""
        super().__init__(facts)
        self._own_mask = facts.model.mask_token_id

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return the drafts, then B-1 masks."""
        return [
            Window([*window.tokens, *[self._own_mask] * useful_masks(each.tau, each.block - 1)])
            for window, each in zip(super().propose(sequences, settings), settings, strict=True)
        ]

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the verified drafts; if all of them hold, the confident candidates behind too."""
        drafts = [token for token in window.tokens if token != self._own_mask]
        choices = choose(logits[: len(drafts) + 1], sequence)
        kept = matching_prefix(drafts, choices)
        if kept < len(drafts) or len(window) == len(drafts):
            return Outcome(choices[: kept + 1], kept)
        draws = draw(logits[len(drafts) :], sequence, choices[:-1])
        run = confident_prefix(draws, sequence.params, settings.tau)
        return Outcome([*choices[:-1], *draws.tokens[:run]], kept)
