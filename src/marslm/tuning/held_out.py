"""Measures trained weights on held-out prompts by decoding them.

Knows nothing about training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from marslm.bench.identity import Referee
from marslm.engine.admission import trained_block
from marslm.engine.api import Answer, room_for, run_all
from marslm.engine.engine import Engine
from marslm.models.loading import load
from marslm.models.record import read_record
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams

WAYS = (
    SamplingParams(strategy="ar"),
    SamplingParams(strategy="lossless"),
    SamplingParams(strategy="mars", tau=0.9),
    SamplingParams(strategy="mars", tau=0.7),
)
"""How held-out prompts are decoded."""

MEDUSA_WAYS = (SamplingParams(strategy="ar"), SamplingParams(strategy="medusa"))
"""How they are where heads were trained."""


@dataclass(frozen=True)
class HeldOutResult:
    """One way of decoding over all held-out prompts.

    identical_to_ar: share of answers that equal one-token decoding's, ties included.
    """

    strategy: str
    tau: float | str | None
    block: int
    tokens: int
    forwards: int
    identical_to_ar: float
    ties: int

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens per forward, prompts' forwards included."""
        return self.tokens / max(1, self.forwards)

    def row(self) -> dict[str, str | int | float | bool | None]:
        """Return the result as a row of a report."""
        return {
            **asdict(self),
            "tokens_per_forward": self.tokens_per_forward,
        }


def measure_held_out(
    model_name: str,
    folder: Path,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int = 128,
    slots: int = 8,
) -> list[HeldOutResult]:
    """Decode `prompts` with the adapter or model in `folder`, greedily, in each of its ways."""
    whole = read_record(folder).mode == "full"
    model = load(str(folder)) if whole else load(model_name, adapter=folder)
    ways = [
        replace(way, max_new_tokens=max_new_tokens)
        for way in (WAYS if model.heads is None else MEDUSA_WAYS)
    ]
    longest = max(map(len, prompts))
    engine = Engine(
        model,
        slots=slots,
        max_length=room_for(model, longest, ways[0]),
        costs=AssumedCosts(),  # tokens per forward are to tell of the model, not of the machine
    )
    answers = [run_all(engine, prompts, way) for way in ways]
    return [
        _result(engine, way, found, answers[0]) for way, found in zip(ways, answers, strict=True)
    ]


def _result(
    engine: Engine, way: SamplingParams, answers: list[Answer], plain: list[Answer]
) -> HeldOutResult:
    referee = Referee(engine)
    judged = [referee.compare(a, other) for a, other in zip(answers, plain, strict=True)]
    return HeldOutResult(
        strategy=str(way.strategy),
        tau=way.shown_tau,
        block=1 if way.strategy == "ar" else trained_block(engine.model),
        tokens=sum(len(answer.ids) for answer in answers),
        forwards=sum(len(answer.runs) for answer in answers),
        identical_to_ar=sum(each.identical for each in judged) / len(judged),
        ties=sum(each.tie for each in judged),
    )
