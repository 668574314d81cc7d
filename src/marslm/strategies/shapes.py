"""Which window pays: how many drafts to verify, and how many masks after each outcome.

With k drafts a step has k+1 outcomes: 0..k of them are kept. A run of masks after an outcome brings
the drafts of the next step if that outcome comes. A row pays if the tokens it is expected to bring,
now or in the next step, exceed its price. Since a row's cost depends on how many there are, the
price is found by trying `PRICES` (it is a Lagrange multiplier). Knows nothing
about models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal, TypeAlias

from marslm.runtime.costs import StepCosts
from marslm.runtime.window import Window
from marslm.strategies.acceptance import PRICES, MaskValue

Form: TypeAlias = Literal["any", "tree"]
"""Where masks may stand: in a tree at least one after each outcome, in "any" where they pay."""


@dataclass(frozen=True)
class Shape:
    """drafts: how many are verified. runs: masks after each outcome, from none kept to all."""

    drafts: int
    runs: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many entries the window has."""
        return self.drafts + sum(self.runs)

    def window(self, drafts: ListOf[int], mask_token_id: int) -> Window:
        """Return the window: the drafts, then the runs of masks in the order of their outcomes."""
        tokens = [*drafts[: self.drafts], *[mask_token_id] * sum(self.runs)]
        if not any(self.runs[:-1]):
            return Window(tokens)
        parents = list(range(-1, self.drafts - 1))
        for outcome, masks in enumerate(self.runs):
            run = range(len(parents), len(parents) + masks)
            parents += [entry - 1 if entry > run.start else outcome - 1 for entry in run]
        return Window(tokens, parents)

    def run(self, outcome: int) -> slice:
        """Return the window entries of the masks after an outcome."""
        start = self.drafts + sum(self.runs[:outcome])
        return slice(start, start + self.runs[outcome])

    def longer(self, limit: int) -> Shape:
        """Return the shape with one mask more after its last outcome, at most `limit` there."""
        return Shape(self.drafts, (*self.runs[:-1], min(self.runs[-1] + 1, limit)))


_CURIOUS = 48
"""Every so many steps a request gets one mask more than pays, so that better passages are seen."""

_MARGIN = 0.05
"""What windows must bring above one-token decoding, in tokens a request: estimates are hopeful."""

_REST = 7
"""Steps after one in which no window paid that are not planned: a plan takes time, too."""

_PATIENCE = 0.05
"""How fast the gain over one-token steps follows a step's."""

NOTHING = Shape(0, (0,))
"""One-token decoding."""


@dataclass(frozen=True)
class Outlook:
    """What one request may expect.

    chances: for each draft at hand, that it and those before it are kept. masks: the longest run.
    """

    chances: ListOf[float]
    value: MaskValue
    masks: int


@dataclass(frozen=True)
class Choice:
    """A shape and the tokens it is expected to bring beyond one: now, and by its masks later."""

    shape: Shape
    now: float
    later: float


class Planner:
    """Chooses the shapes of a step; remembers how much its steps gain over one-token ones.

    With that gain u, a second is worth u times the tokens that one-token steps would bring in it,
    and the best shapes bring the most tokens above the worth of the seconds they take. What masks
    bring later is reckoned at the price that drafts have had lately: masks are cheap in a step in
    which nobody has drafts, but the next one is not such a step.
    """

    def __init__(self, costs: StepCosts, form: Form) -> None:
        """`costs`: of steps, as they are measured."""
        self._costs = costs
        self._form: Form = form
        self._gain = 1.0
        self._steps = 0
        self._rest = 0
        self._price_of_drafts = 0.0

    def plan(self, outlooks: ListOf[Outlook], rows: int) -> list[Shape]:
        """Return each request's shape.

        rows: what the step feeds anyway, all pending tokens of all requests.
        """
        if self._rest and not any(outlook.chances for outlook in outlooks):
            self._rest -= 1
            shapes = [NOTHING] * len(outlooks)
        else:
            shapes = [choice.shape for choice in self._choose(outlooks, rows)]
            self._rest = 0 if any(shape.rows for shape in shapes) else _REST
        self._steps += 1
        turn, rest = divmod(self._steps, _CURIOUS)
        if rest == 0:
            curious = turn % len(shapes)
            shapes[curious] = shapes[curious].longer(outlooks[curious].masks)
        return shapes

    def _choose(self, outlooks: ListOf[Outlook], rows: int) -> list[Choice]:
        """Return what brings most above the worth of the seconds it takes."""
        requests = len(outlooks)
        plain = self._costs.seconds(requests, masks=False)
        worth = self._gain * requests / plain
        best: list[Choice] = []
        best_profit, best_price = float("-inf"), 0
        for price in range(len(PRICES)):
            later = max(price, round(self._price_of_drafts))
            choices = [best_shape(outlook, price, later, self._form) for outlook in outlooks]
            tokens = sum(choice.now + choice.later for choice in choices)
            windows = any(choice.shape.rows for choice in choices)
            profit = tokens - worth * self._seconds(choices, rows) - _MARGIN * requests * windows
            if profit > best_profit:
                best, best_profit, best_price = choices, profit, price
            if not windows:
                break  # nor will any window pay at a higher price
        gain = (1 + sum(choice.now for choice in best) / requests) * plain
        gain /= self._seconds(best, rows)
        self._gain = max(1.0, self._gain + _PATIENCE * (gain - self._gain))
        if any(outlook.chances for outlook in outlooks):
            self._price_of_drafts += _PATIENCE * (best_price - self._price_of_drafts)
        return best

    def _seconds(self, choices: ListOf[Choice], rows: int) -> float:
        """Return what these requests cost: a row each and what their windows add to the step.

        A prompt that is read in the same step makes it long, which is not their doing.
        """
        window = sum(choice.shape.rows for choice in choices)
        masks = any(any(choice.shape.runs) for choice in choices)
        seconds = self._costs.seconds
        added = seconds(rows + window, masks) - seconds(rows, masks=False)
        return seconds(len(choices), masks=False) + max(0.0, added)


def best_shape(outlook: Outlook, price: int, later_price: int, form: Form) -> Choice:
    """Return the shape that brings most above the price of its rows.

    price, later_price: indices into `PRICES`, of a row now and of the rows of drafts to come.
    """
    values = outlook.value.at(later_price, outlook.masks)
    best, best_profit = Choice(NOTHING, 0.0, 0.0), float("-inf")
    for drafts in range(len(outlook.chances) + 1):
        kept = outlook.chances[:drafts]
        if drafts and kept[-1] <= PRICES[price]:
            break
        outcomes = [a - b for a, b in zip([1.0, *kept], [*kept, 0.0], strict=True)]
        runs = _runs(outcomes, values, PRICES[price], form)
        later = sum(chance * sum(values[:n]) for chance, n in zip(outcomes, runs, strict=True))
        choice = Choice(Shape(drafts, tuple(runs)), sum(kept), later)
        profit = choice.now + later - PRICES[price] * choice.shape.rows
        if profit > best_profit:
            best, best_profit = choice, profit
    return best


def _runs(outcomes: ListOf[float], values: ListOf[float], price: float, form: Form) -> list[int]:
    """Return how many masks to put after each outcome, given the outcomes' chances."""
    least = min(1, len(values)) if form == "tree" else 0
    return [max(least, sum(chance * value > price for value in values)) for chance in outcomes]


def chances_of_prefixes(chances: ListOf[float]) -> list[float]:
    """Return for each draft the chance that it and all before it are kept."""
    return list(accumulate(chances, mul))
