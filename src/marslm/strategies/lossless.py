"""Self-verified decoding: several tokens a step, and exactly the one-token output.

METHOD section 3. A step feeds [last token, drafts, masks]. Attention is causal, so the rows at the
drafts are one-token rows: the drafts that equal what those rows choose are kept and one more token
is free. The masks after the outcome that came bring the next drafts. `lossless-chain` puts B-1
masks after the last draft, always, and a rejection costs it a step without drafts. `lossless-tree`
puts masks after every possible outcome. `lossless` has a second source of drafts, what followed the
last tokens earlier in the text, which needs no masks; it feeds what pays, or nothing, in which case
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
from marslm.strategies.acceptance import DraftOdds, MaskValue, from_mask, from_text
from marslm.strategies.base import EngineFacts, Outcome, StepSettings, Strategy
from marslm.strategies.drafts import Drafts
from marslm.strategies.ngrams import NgramIndex
from marslm.strategies.shapes import NOTHING, Form, Outlook, Planner, Shape

MIN_DRAFT_CONFIDENCE = 0.2
"""`lossless-chain` ends its drafts before the first one less likely than this. A rejected draft
costs the next step its drafts, so drafting pays from about half the mean acceptance on: with one
draft of acceptance c a step brings 2 / (2 - c) tokens, and the break-even confidence is c / 2."""


@dataclass
class Drafting:
    """What is remembered of a request: the drafts of both sources, and what its window was.

    read: from masks. found: in the text. fed: those of the two that the window's drafts are from.
    """

    value: MaskValue
    read: Drafts
    found: Drafts
    fed: Drafts
    index: NgramIndex = field(default_factory=NgramIndex)
    shape: Shape = NOTHING


class Lossless(Strategy):
    """Draft from masks and from the text, verify in the next step, in the shape that pays."""

    name = "lossless"
    exact = True
    reads_masks = True
    form: Form = "any"
    looks_up = True

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
        floor = self._planner.floor(len(states), settings[0].rows)
        for sequence, state, each in zip(sequences, states, settings, strict=True):
            self._choose_source(sequence, state, each.block - 1, floor)
        for state, shape in zip(states, self.shapes(states, settings), strict=True):
            state.shape = shape
        return [state.shape.window(state.fed.tokens, self._mask_token_id) for state in states]

    def shapes(self, states: ListOf[Drafting], settings: ListOf[StepSettings]) -> ListOf[Shape]:
        """Return each request's shape, as pays for all together."""
        outlooks = [
            Outlook(state.fed.chances, state.value, each.block - 1)
            for state, each in zip(states, settings, strict=True)
        ]
        return self._planner.plan(outlooks, settings[0].rows)

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the verified drafts and the free token; read new drafts behind them."""
        state = self._state(sequence)
        count = min(state.shape.drafts, len(window))
        choices = choose(logits if count == len(window) else logits[: count + 1], sequence)
        kept = self.kept_drafts(window.tokens[:count], choices)
        self.learn(state, choices[: kept + 1])
        if count < len(window):
            run = logits[1:][state.shape.run(kept)]
            self._read_drafts(sequence, state, run, choices[: kept + 1])
        return Outcome(choices[: kept + 1], kept)

    def kept_drafts(self, drafts: ListOf[int], choices: ListOf[int]) -> int:
        """Return how many leading drafts are what the model chooses."""
        return matching_prefix(drafts, choices)

    def learn(self, state: Drafting, written: ListOf[int]) -> None:
        """Note which drafts of either source came true."""
        state.read.judge(written)
        state.found.judge(written)

    def _state(self, sequence: Sequence) -> Drafting:
        if sequence.state is None:
            drawn = sequence.params.temperature > 0
            read, found = Drafts(self._odds[drawn]), Drafts(self._odds[drawn])
            sequence.state = Drafting(MaskValue(self._value[drawn]), read, found, read)
        state: Drafting = sequence.state
        return state

    def _choose_source(self, sequence: Sequence, state: Drafting, limit: int, floor: float) -> None:
        """Look for up to `limit` drafts in the text; feed those that promise more than masks'."""
        if self.looks_up and floor < 1:  # at 1 not even what is sure would pay
            match = state.index.find(sequence.tokens, limit)
            origins = from_text(match.length, len(match.tokens))
            state.found.take(match.tokens, origins, floor)
        found_is_better = state.found.hope > state.read.hope
        state.fed = state.found if found_is_better else state.read
        if state.read.tokens:  # masks that found nothing better are worth nothing
            chances = state.read.chances
            state.value.observe([0.0] * len(chances) if found_is_better else chances)

    def _read_drafts(
        self, sequence: Sequence, state: Drafting, logits: Logits, ahead: ListOf[int]
    ) -> None:
        """Take the drafts in mask rows that follow the text and `ahead`, and their chances."""
        if len(logits) == 0:
            return
        draws = draw(logits, sequence, ahead)
        sure = draws.confidences()
        origins = [from_mask(index + 1, each) for index, each in enumerate(sure)]
        state.read.take(draws.tokens, origins)


class LosslessTree(Lossless):
    """Masks after every outcome, so that drafts are always fresh; as many as pay."""

    name = "lossless-tree"
    form: Form = "tree"
    looks_up = False


class LosslessChain(Lossless):
    """Every likely draft and then B-1 masks, whatever they cost: a window any engine can run."""

    name = "lossless-chain"
    looks_up = False

    def shapes(self, states: ListOf[Drafting], settings: ListOf[StepSettings]) -> ListOf[Shape]:
        """Return chains."""
        return [
            _chain(state.read.confidences, each.block - 1)
            for state, each in zip(states, settings, strict=True)
        ]


def _chain(confidences: ListOf[float], masks: int) -> Shape:
    likely = list(takewhile(lambda each: each >= MIN_DRAFT_CONFIDENCE, confidences))
    return Shape(len(likely), (*[0] * len(likely), masks))
