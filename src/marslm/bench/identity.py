"""Compares answers with one-token decoding's: equal, parted at a tie, or different.

Floating-point results depend on how many rows a matrix product has, so two correct decoders may
part where two tokens are equally likely to within rounding. Such a tie counts as equal and is
reported. Knows nothing about timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from marslm.engine.api import Answer
from marslm.engine.engine import Engine
from marslm.runtime.params import SamplingParams
from marslm.runtime.sampling import choose
from marslm.runtime.window import Window
from marslm.runtime.work import Work

TIE_GAP = 1e-3
"""Largest logit gap between two tokens that counts as a tie."""


@dataclass(frozen=True)
class Comparison:
    """identical: equal, or parted at a tie. gap: the logit gap where they parted, else None."""

    identical: bool
    gap: float | None

    @property
    def tie(self) -> bool:
        """Whether the answers parted at a tie."""
        return self.identical and self.gap is not None


class Referee:
    """Runs the plain model over finished answers."""

    def __init__(self, engine: Engine) -> None:
        """`engine`: one that is idle whenever it is used here."""
        self._engine = engine

    def compare(self, answer: Answer, plain: Answer) -> Comparison:
        """Compare greedy answers to the same prompt; `plain` is one-token decoding's."""
        parted = _first_difference(answer.ids, plain.ids)
        if parted is None:
            return Comparison(identical=True, gap=None)
        if parted >= min(len(answer.ids), len(plain.ids)):
            return Comparison(identical=False, gap=None)
        logits = self._logits(plain.prompt_ids, plain.ids[:parted], 1)[0]
        gap = float(logits[plain.ids[parted]] - logits[answer.ids[parted]])
        return Comparison(identical=abs(gap) < TIE_GAP, gap=gap)

    def mask_agreement(
        self, answer: Answer, plain: Answer, params: SamplingParams
    ) -> tuple[int, int]:
        """Return how many tokens read from masks one-token decoding would choose too, and all.

        The first token of each run is read from a clean row, the others from masks. `plain` is
        one-token decoding's answer, which tells without a forward as far as the two are equal.
        """
        if len(answer.runs) == len(answer.ids):
            return 0, 0
        choices = self._choices(answer, plain, params)
        equal = total = start = 0
        for run in answer.runs:
            for index in range(start + 1, start + run):
                total += 1
                equal += choices[index] == answer.ids[index]
            start += run
        return equal, total

    def _choices(self, answer: Answer, plain: Answer, params: SamplingParams) -> list[int]:
        """Return what one-token decoding chooses after each prefix of the answer."""
        parted = _first_difference(answer.ids, plain.ids)
        if parted is None or parted == len(answer.ids):
            return answer.ids
        known = plain.ids[: parted + 1]
        if len(known) == len(answer.ids):
            return known
        logits = self._logits(answer.prompt_ids, answer.ids[:-1], len(answer.ids) - len(known))
        request = self._engine.new_sequence(answer.prompt_ids, params)
        return known + [
            choose(row[None], request, answer.ids[: len(known) + place])[0]
            for place, row in enumerate(logits)
        ]

    def _logits(self, prompt: list[int], answer: list[int], wanted: int) -> Tensor:
        return self._engine.runner.forward([Work(0, 0, [*prompt, *answer], Window(), wanted)])[0]


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))
