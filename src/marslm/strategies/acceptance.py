"""How often drafts are right: running estimates that decide how many to make.

Two questions. How likely is this draft right, given where it comes from (`DraftOdds`, one for an
engine, with a factor for each request)? And what are masks worth, that is, the drafts they will
bring (`MaskValue`, one for each request, starting from the engine's)? Knows nothing about windows
or costs.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import TypeAlias

PRICES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 1.0)
"""What a row may cost, in tokens: a row that brings less than its price is not worth feeding. At
1.0 none is."""

_BINS = 10
_PRIOR_TRIALS = 4.0
_FORGET = 0.97
_FACTOR_TRIALS = 6.0
_PRIOR_RUNS = 6.0


Kind: TypeAlias = tuple[str | int, ...]
"""What drafts are counted together: their source, and what their chance depends on."""

Origin: TypeAlias = tuple[Kind, float]
"""A draft's kind, and the chance to expect until drafts of its kind have been judged."""

_FROM_TEXT: ListOf[Origin] = [
    (("text", index + 1), chance)
    for index, chance in enumerate((0.25, 0.45, 0.65, 0.7, 0.75, 0.8, 0.8, 0.9))
]
"""Of a token that once followed the last 1, 2, ... tokens; so it is in SmolLM2's answers to
Spec-Bench's prompts."""


def from_mask(distance: int, confidence: float) -> Origin:
    """Return the origin of a draft whose row saw `distance` masks, itself included."""
    return ("mask", distance, min(_BINS - 1, int(confidence * _BINS))), confidence


def from_text(match: int, count: int) -> list[Origin]:
    """Return the origins of `count` drafts that once followed the last `match` tokens.

    A draft that is right makes the match one token longer for the next.
    """
    longest = len(_FROM_TEXT)
    return [_FROM_TEXT[min(length, longest) - 1] for length in range(match, match + count)]


class DraftOdds:
    """Chance that a draft is kept if those before it were, by its kind."""

    def __init__(self) -> None:
        """Have judged no draft."""
        self._counts: dict[Kind, tuple[float, float]] = {}

    def chance(self, kind: Kind, prior: float) -> float:
        """Return the chance for a draft; `prior` until drafts of its kind have been judged."""
        kept, trials = self._counts.get(kind, (0.0, 0.0))
        return (kept + _PRIOR_TRIALS * prior) / (trials + _PRIOR_TRIALS)

    def observe(self, kind: Kind, kept: bool) -> None:
        """Count one draft that was judged."""
        hits, trials = self._counts.get(kind, (0.0, 0.0))
        self._counts[kind] = hits + kept, trials + 1


class RequestFactor:
    """How much better or worse than expected one request's drafts are, lately."""

    def __init__(self) -> None:
        """Expect the engine's average."""
        self._kept = self._expected = 0.0

    @property
    def value(self) -> float:
        """What to multiply a chance by."""
        return (self._kept + _FACTOR_TRIALS) / (self._expected + _FACTOR_TRIALS)

    def observe(self, expected: float, kept: bool) -> None:
        """Compare a draft's chance with what came of it."""
        self._kept = _FORGET * self._kept + kept
        self._expected = _FORGET * self._expected + expected


class MaskValue:
    """Mean net tokens that the draft of the i-th mask of a run brings, at each price of a row.

    A draft brings a token with the chance that it and those before it are kept, and is fed only if
    that chance is above the price: max(0, chance - price) on average.
    """

    def __init__(self, parent: MaskValue | None = None) -> None:
        """Start from `parent`, or hope that every second draft is right."""
        self._parent = parent
        self._runs: list[float] = []
        self._sums: list[list[float]] = []
        self._known: dict[tuple[int, int], list[float]] = {}

    def at(self, price: int, masks: int) -> list[float]:
        """Return the values of masks 1..masks at PRICES[price]; each at most the one before it."""
        if (price, masks) in self._known:
            return self._known[price, masks]
        values: list[float] = []
        for index, prior in enumerate(self._prior(price, masks)):
            runs, total = self._seen(index, price)
            value = (total + _PRIOR_RUNS * prior) / (runs + _PRIOR_RUNS)
            values.append(min(value, values[-1]) if values else value)
        self._known[price, masks] = values
        return values

    def observe(self, chances: ListOf[float]) -> None:
        """Take in a fresh run; chances[i]: that drafts 0..i are all kept."""
        self._known.clear()
        for index, chance in enumerate(chances):
            if index == len(self._runs):
                self._runs.append(0.0)
                self._sums.append([0.0] * len(PRICES))
            self._runs[index] = _FORGET * self._runs[index] + 1
            sums = self._sums[index]
            for price, limit in enumerate(PRICES):
                sums[price] = _FORGET * sums[price] + max(0.0, chance - limit)
        if self._parent is not None:
            self._parent.observe(chances)

    def _prior(self, price: int, masks: int) -> list[float]:
        if self._parent is not None:
            return self._parent.at(price, masks)
        return [max(0.0, 0.5 ** (index + 1) - PRICES[price]) for index in range(masks)]

    def _seen(self, index: int, price: int) -> tuple[float, float]:
        if index < len(self._runs):
            return self._runs[index], self._sums[index][price]
        return 0.0, 0.0
