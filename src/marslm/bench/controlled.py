"""Strategies whose acceptance is set from outside, for measuring speed with random weights.

They feed the rows, run the forwards and read the logits that the real ones do; only how many
candidates are kept is drawn by a coin, so what is written means nothing. `Coached` is the
opposite: it verifies as ever, and is told drafts that are often right. Knows nothing about time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as ListOf
from functools import partial

from marslm.runtime.logits import Logits
from marslm.runtime.sampling import draw
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.strategies.acceptance import DraftOdds, Kind, from_mask
from marslm.strategies.base import EngineFacts, Outcome, StepSettings
from marslm.strategies.lossless import Drafting, Lossless, LosslessChain
from marslm.strategies.mars import Mars, confident_prefix
from marslm.strategies.registry import register_strategy

MARS, LOSSLESS, COACHED = "mars-controlled", "lossless-controlled", "lossless-coached"
"""Names under which they are registered."""


class Coin:
    """Says how many of some candidates are kept, each with the same chance if those before were."""

    def __init__(self, acceptance: float, seed: int = 0) -> None:
        """`acceptance`: the chance of one."""
        self.acceptance = acceptance
        self._random = random.Random(seed)

    def kept(self, candidates: int) -> int:
        """Return how many leading candidates are kept."""
        count = 0
        while count < candidates and self._random.random() < self.acceptance:
            count += 1
        return count


class ControlledMars(Mars):
    """`mars` whose confidences are computed and not heeded."""

    name = MARS

    def __init__(self, facts: EngineFacts, acceptance: float) -> None:
        """Keep each candidate with this chance."""
        super().__init__(facts)
        self._coin = Coin(acceptance)

    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Keep the first candidate and, by the coin, some after it."""
        draws = draw(logits, sequence)
        confident_prefix(draws, sequence.params, settings.tau)
        return Outcome(draws.tokens[: 1 + self._coin.kept(len(draws.tokens) - 1)])


class _KnownOdds(DraftOdds):
    """Chances that are known, whatever the model's confidence."""

    def __init__(self, acceptance: float) -> None:
        super().__init__()
        self._acceptance = acceptance

    def chance(self, kind: Kind, prior: float) -> float:
        return self._acceptance


class ControlledLossless(Lossless):
    """`lossless` that chooses its windows for a known acceptance, which then comes true."""

    name = LOSSLESS
    exact = False
    looks_up = False

    def __init__(self, facts: EngineFacts, acceptance: float) -> None:
        """Keep each draft with this chance."""
        super().__init__(facts)
        self._coin = Coin(acceptance)
        self._odds = {drawn: _KnownOdds(acceptance) for drawn in (False, True)}

    def kept_drafts(self, drafts: ListOf[int], choices: ListOf[int]) -> int:
        """Return how many the coin keeps."""
        return self._coin.kept(len(drafts))

    def learn(self, state: Drafting, written: ListOf[int]) -> None:
        """Learn nothing: the coin, not what is written, says which drafts are right."""
        state.read.clear()


class Coached(LosslessChain):
    """`lossless-chain` that is told what to draft: an answer, some of it wrong."""

    name = COACHED

    def __init__(self, facts: EngineFacts, answers: dict[tuple[int, ...], list[int]]) -> None:
        """`answers`: by prompt."""
        super().__init__(facts)
        self._answers = answers
        self._random = random.Random(0)

    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Draft what the answer says, one token in five being another; then masks."""
        for sequence, each in zip(sequences, settings, strict=True):
            written = len(sequence.tokens) - sequence.prompt_length
            answer = self._answers[tuple(sequence.tokens[: sequence.prompt_length])]
            drafts = [
                token if self._random.random() < 0.8 else 0
                for token in answer[written : written + each.block - 1]
            ]
            origins = [from_mask(index + 1, 1.0) for index in range(len(drafts))]
            self._state(sequence).read.take(drafts, origins)
        return super().propose(sequences, settings)


def register(acceptance: float) -> None:
    """Make the controlled strategies known by name."""
    register_strategy(MARS, partial(ControlledMars, acceptance=acceptance))
    register_strategy(LOSSLESS, partial(ControlledLossless, acceptance=acceptance))


def register_coach(answers: dict[tuple[int, ...], list[int]]) -> None:
    """Make the coached strategy known by name."""
    register_strategy(COACHED, partial(Coached, answers=answers))
