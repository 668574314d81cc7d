"""Self-verified decoding: several tokens a step, and exactly the one-token output.

METHOD section 3. A step feeds [last token, drafts, masks]. Attention is causal, so the rows at the
drafts are one-token rows: the drafts that equal what those rows choose are kept and one more token
is free. The masks after the outcome that came bring the next drafts. `lossless-chain` puts B-1
masks after the last draft, always, and a rejection costs it a step without drafts. `lossless-tree`
puts masks after every possible outcome, and `lossless` wherever they pay, or nowhere, in which case
it is `ar`. What is fed decides how fast an answer comes, never what it says. Knows nothing about
tau.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import takewhile

from marslm.core.verify import matching_prefix
from marslm.runtime.logits import Logits
from marslm.runtime.sampling import choose, draw
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.acceptance import DraftOdds, MaskValue, RequestFactor
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy
from marslm.strategies.shapes import NOTHING, Form, Outlook, Planner, Shape, chances_of_prefixes

MIN_DRAFT_CONFIDENCE = 0.2
"""`lossless-chain` ends its drafts before the first one less likely than this. A rejected draft
costs the next step its drafts, so drafting pays from about half the mean acceptance on: with one
draft of acceptance c a step brings 2 / (2 - c) tokens, and the break-even confidence is c / 2."""


@dataclass
class _Drafting:
    """What is remembered of a request: drafts at hand, their chances, what its window was."""

    value: MaskValue
    factor: RequestFactor = field(default_factory=RequestFactor)
    drafts: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    shape: Shape = NOTHING


class Lossless(Strategy):
    """Draft from masks, verify for free in the next step, in the shape that pays."""

    name = "lossless"
    exact = True
    reads_masks = True
    form: Form = "any"

    def __init__(self, facts: EngineFacts) -> None:
        """Remember [MASK] and what steps cost; how often drafts are right is yet to be seen."""
        self._mask_token_id = facts.model.mask_token_id
        self._planner = Planner(facts.costs, self.form)
        # Drawn drafts agree by the noise they share, beyond their probability: apart from greedy.
        self._odds = {drawn: DraftOdds() for drawn in (False, True)}
        self._value = {drawn: MaskValue() for drawn in (False, True)}

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return for each request some of the drafts at hand, and masks."""
        states = [self._state(sequence) for sequence in sequences]
        for state, shape in zip(states, self.shapes(states, settings), strict=True):
            state.shape = shape
        return [state.shape.window(state.drafts, self._mask_token_id) for state in states]

    def shapes(self, states: ListOf[_Drafting], settings: ListOf[StepSettings]) -> ListOf[Shape]:
        """Return each request's shape, as pays for all together."""
        outlooks = [
            Outlook(chances_of_prefixes(state.chances), state.value, each.block - 1)
            for state, each in zip(states, settings, strict=True)
        ]
        return self._planner.plan(outlooks, settings[0].rows)

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the verified drafts and the free token; read new drafts behind them."""
        state = self._state(sequence)
        count = min(state.shape.drafts, len(window))
        drafts = window.tokens[:count]
        choices = choose(logits[: count + 1], sequence)
        kept = self.kept_drafts(drafts, choices)
        self._learn(sequence, state, count, kept)
        run = logits[1:][state.shape.run(kept)] if count == state.shape.drafts else logits[:0]
        self._read_drafts(sequence, state, run, choices[: kept + 1])
        return Outcome(choices[: kept + 1], kept)

    def kept_drafts(self, drafts: ListOf[int], choices: ListOf[int]) -> int:
        """Return how many leading drafts are what the model chooses."""
        return matching_prefix(drafts, choices)

    def _state(self, sequence: Sequence) -> _Drafting:
        if sequence.state is None:
            drawn = sequence.params.temperature > 0
            sequence.state = _Drafting(MaskValue(self._value[drawn]))
        state: _Drafting = sequence.state
        return state

    def _learn(self, sequence: Sequence, state: _Drafting, count: int, kept: int) -> None:
        """Note what came of the drafts: those kept, and the first that was not."""
        odds = self._odds[sequence.params.temperature > 0]
        for index in range(min(kept + 1, count)):
            odds.observe(index + 1, state.confidences[index], index < kept)
            state.factor.observe(state.chances[index], index < kept)

    def _read_drafts(
        self, sequence: Sequence, state: _Drafting, logits: Logits, ahead: ListOf[int]
    ) -> None:
        """Take the drafts in mask rows that follow the text and `ahead`, and their chances."""
        state.drafts, state.confidences, state.chances = [], [], []
        if len(logits) == 0:
            return
        odds, factor = self._odds[sequence.params.temperature > 0], state.factor.value
        draws = draw(logits, sequence, ahead)
        state.drafts = draws.tokens
        state.confidences = draws.confidences()
        state.chances = [
            min(1.0, factor * odds.chance(index + 1, confidence))
            for index, confidence in enumerate(state.confidences)
        ]
        state.value.observe(chances_of_prefixes(state.chances))


class LosslessTree(Lossless):
    """Masks after every outcome, so that drafts are always fresh; as many as pay."""

    name = "lossless-tree"
    form: Form = "tree"


class LosslessChain(Lossless):
    """Every likely draft and then B-1 masks, whatever they cost: a window any engine can run."""

    name = "lossless-chain"

    def shapes(self, states: ListOf[_Drafting], settings: ListOf[StepSettings]) -> ListOf[Shape]:
        """Return chains."""
        return [
            _chain(state.confidences, each.block - 1)
            for state, each in zip(states, settings, strict=True)
        ]


def _chain(confidences: ListOf[float], masks: int) -> Shape:
    likely = list(takewhile(lambda each: each >= MIN_DRAFT_CONFIDENCE, confidences))
    return Shape(len(likely), (*[0] * len(likely), masks))
