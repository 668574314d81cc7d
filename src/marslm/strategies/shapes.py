"""Which window pays: how many drafts to verify, and how many masks after each outcome.

With k drafts a step has k+1 outcomes: 0..k of them are kept. A run of masks after an outcome brings
the drafts of the next step if that outcome comes. A row pays if the tokens it is expected to bring,
now or in the next step, exceed its price. Since a row's cost depends on how many there are, the
price is found by trying `PRICES` (it is a Lagrange multiplier). Knows nothing
about models or requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

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
        if self is NOTHING:
            return _EMPTY
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


_CURIOUS, _LEAST_CURIOUS = 48, 384
"""After so many steps a request gets one mask more than pays, so that better passages are seen;
after twice as many as the last time where masks have not paid since, up to the second number."""

_MARGIN = 0.05
"""What a window must bring beyond its price, in tokens: estimates are hopeful."""

_REST = 7
"""Steps after one in which no window paid that are not planned unless drafts are more promising:
a plan takes time, too."""

_WIDTH = 4
"""Rows a request up to which a floor is looked for."""

_PATIENCE = 0.05
"""How fast the gain over one-token steps follows a step's."""

NOTHING = Shape(0, (0,))
"""One-token decoding."""

_EMPTY = Window()


class Outlook(NamedTuple):
    """What one request may expect.

    chances: for each draft at hand, that it and those before it are kept. masks: the longest run.
    """

    chances: ListOf[float]
    value: MaskValue
    masks: int


class Choice(NamedTuple):
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
        self._price_of_drafts = 0.0
        self._rest = 0
        self._refused = 0.0
        self._boredom = self._wait = _CURIOUS
        self._turn = 0
        self._floor = 0.0
        self._floor_of, self._floor_age = (0, 0), 0

    def floor(self, requests: int, rows: int) -> float:
        """Return the least that a row of a window costs in a step, in tokens.

        Drafts and masks that bring less cannot pay, in whatever window they stand.
        """
        if self._floor_of != (requests, rows) or self._floor_age == _REST:
            seconds = self._costs.seconds
            base = seconds(rows, masks=False)
            sizes = {1, *(requests * width for width in range(1, _WIDTH + 1))}
            added = min((seconds(rows + size, masks=False) - base) / size for size in sizes)
            self._floor = self._worth(requests) * max(0.0, added)
            self._floor_of, self._floor_age = (requests, rows), 0
        self._floor_age += 1
        return self._floor

    def plan(self, outlooks: ListOf[Outlook], rows: int) -> list[Shape]:
        """Return each request's shape.

        rows: what the step feeds anyway, all pending tokens of all requests.
        """
        hope = max(sum(outlook.chances) for outlook in outlooks)
        if self._rest and hope <= self._refused:
            self._rest -= 1
            self._note_gain(1.0)
            shapes = [NOTHING] * len(outlooks)
        else:
            shapes = [choice.shape for choice in self._choose(outlooks, rows)]
            if not any(shape.rows for shape in shapes):
                self._rest, self._refused = _REST, hope
            elif any(any(shape.runs) for shape in shapes):
                self._rest, self._boredom = 0, _CURIOUS
        self._wait -= 1
        if self._wait <= 0:
            self._be_curious(shapes, outlooks)
        return shapes

    def _be_curious(self, shapes: list[Shape], outlooks: ListOf[Outlook]) -> None:
        """Give one request a mask more, each in its turn."""
        self._turn += 1
        curious = self._turn % len(shapes)
        shapes[curious] = shapes[curious].longer(outlooks[curious].masks)
        self._wait = self._boredom
        self._boredom = min(2 * self._boredom, _LEAST_CURIOUS)

    def _choose(self, outlooks: ListOf[Outlook], rows: int) -> list[Choice]:
        """Return what brings most above the worth of the seconds that it adds."""
        requests = len(outlooks)
        worth, floor = self._worth(requests), self.floor(requests, rows)
        best: list[Choice] = []
        best_profit, best_price, best_added = float("-inf"), 0, 0.0
        for price in range(max(0, bisect_right(PRICES, floor) - 1), len(PRICES)):
            later = max(price, round(self._price_of_drafts))
            choices = [best_shape(outlook, price, later, self._form) for outlook in outlooks]
            tokens = sum(choice.now + choice.later for choice in choices)
            windows = sum(choice.shape.rows > 0 for choice in choices)
            added = self._added_seconds(choices, rows)
            profit = tokens - worth * added - _MARGIN * windows
            if profit > best_profit:
                best, best_profit, best_price, best_added = choices, profit, price, added
            if not windows:
                break  # nor will any window pay at a higher price
        plain = self._costs.seconds(requests, masks=False)
        gain = 1 + sum(choice.now for choice in best) / requests
        self._note_gain(gain * plain / (plain + best_added))
        if any(choice.shape.drafts for choice in best):
            self._price_of_drafts += _PATIENCE * (best_price - self._price_of_drafts)
        return best

    def _note_gain(self, gain: float) -> None:
        """Take in how many times as fast as a one-token step a step is."""
        self._gain = max(1.0, self._gain + _PATIENCE * (gain - self._gain))

    def _worth(self, requests: int) -> float:
        """Return what a second is worth, in tokens."""
        return self._gain * requests / self._costs.seconds(requests, masks=False)

    def _added_seconds(self, choices: ListOf[Choice], rows: int) -> float:
        """Return what the windows add to a step of `rows`.

        A prompt that is read in the same step makes it long, which is not their doing.
        """
        window = sum(choice.shape.rows for choice in choices)
        if not window:
            return 0.0
        masks = any(any(choice.shape.runs) for choice in choices)
        seconds = self._costs.seconds
        return max(0.0, seconds(rows + window, masks) - seconds(rows, masks=False))


def best_shape(outlook: Outlook, price: int, later_price: int, form: Form) -> Choice:
    """Return the shape that brings most above the price of its rows.

    price, later_price: indices into `PRICES`, of a row now and of the rows of drafts to come.
    """
    values = outlook.value.at(later_price, outlook.masks)
    totals = [0.0, *accumulate(values)]
    row, least = PRICES[price], min(1, len(values)) if form == "tree" else 0
    reach, now, later, rows = 1.0, 0.0, 0.0, 0  # if the drafts so far are fed; reach: all are kept
    runs: list[int] = []  # masks after the outcomes in which one of them is not
    best, best_profit = (0, 0, 0.0, 0.0), float("-inf")
    for drafts, chance in enumerate([*outlook.chances, 0.0]):
        last = _masks(reach, values, row, least)
        brought = later + reach * totals[last]
        profit = now + brought - row * (rows + last)
        if profit > best_profit:
            best, best_profit = (drafts, last, now, brought), profit
        if chance <= row:
            break
        runs.append(_masks(reach - chance, values, row, least))
        later += (reach - chance) * totals[runs[-1]]
        rows += 1 + runs[-1]
        reach = chance
        now += chance
    drafts, last, now, brought = best
    return Choice(Shape(drafts, (*runs[:drafts], last)), now, brought)


def _masks(chance: float, values: ListOf[float], price: float, least: int) -> int:
    """Return how many masks to put after an outcome of this chance."""
    count = 0
    while count < len(values) and chance * values[count] > price:
        count += 1
    return max(least, count)
