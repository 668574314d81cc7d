"""Windows chosen by measured cost: in a made-up world whose costs and chances are known."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate, pairwise
from operator import mul

import pytest

from marslm.runtime.costs import StepCosts
from marslm.runtime.window import Window
from marslm.strategies.acceptance import PRICES, DraftOdds, MaskValue, from_mask
from marslm.strategies.shapes import NOTHING, Choice, Outlook, Planner, Shape

MASK = 9
MASKS = 4
WARM_UP = 160
"""Steps that are not counted: costs and chances are still unknown."""

Cost = Callable[[int, bool], float]
"""Seconds of a step by rows, and by whether masks are among them."""


def memory_bound(rows: int, masks: bool) -> float:
    return (30 + 1.0 * rows) * (1.1 if masks else 1)


def mixed(rows: int, masks: bool) -> float:
    """Nearly flat for a few rows, then bound by arithmetic, as a CPU is."""
    return max(34 + 0.8 * rows, 10 + 4.5 * rows) * (1.12 if masks else 1)


def compute_bound(rows: int, masks: bool) -> float:
    return 5.0 * rows * (1.05 if masks else 1)


def chances_of_prefixes(chances: list[float]) -> list[float]:
    return list(accumulate(chances, mul))


class World:
    """Requests of a batch; drafts are right as often as they seem to be."""

    def __init__(self, cost: Cost, batch: int, skill: float, seed: int = 0) -> None:
        self.cost, self.batch, self.skill = cost, batch, skill
        self.random = random.Random(seed)

    def drafts(self, masks: int) -> list[float]:
        """Return the chances of fresh drafts; the first is the hardest."""
        return [
            self.random.random() ** ((1.3 if i == 0 else 0.8) / self.skill) for i in range(masks)
        ]

    def speed(self, choose: Callable[[list[list[float]]], list[Shape]], steps: int) -> float:
        """Return tokens a second; `choose` is told all requests' chances and hears the cost."""
        drafts: list[list[float]] = [[] for _ in range(self.batch)]
        tokens, seconds = 0, 0.0
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                tokens, seconds = 0, 0.0
            shapes = choose(drafts)
            rows = self.batch + sum(shape.rows for shape in shapes)
            masks = any(any(shape.runs) for shape in shapes)
            took = self.cost(rows, masks) * self.random.uniform(0.95, 1.05)
            took *= 4 if self.random.random() < 0.02 else 1
            seconds += self.cost(rows, masks)
            self.costs.observe(rows, masks, took)
            for request, shape in enumerate(shapes):
                kept = 0
                for chance in drafts[request][: shape.drafts]:
                    if self.random.random() > chance:
                        break
                    kept += 1
                tokens += kept + 1
                run = shape.run(kept)
                drafts[request] = self.drafts(run.stop - run.start)
        return tokens / seconds

    def adaptive(self, steps: int = 400) -> float:
        self.costs = StepCosts()
        parent, planner = MaskValue(), Planner(self.costs, "any")
        values = [MaskValue(parent) for _ in range(self.batch)]

        def choose(drafts: list[list[float]]) -> list[Shape]:
            outlooks = []
            for chances, value in zip(drafts, values, strict=True):
                prefixes = chances_of_prefixes(chances)
                if prefixes:
                    value.observe(prefixes)
                outlooks.append(Outlook(prefixes, value, MASKS))
            return planner.plan(outlooks, self.batch)

        return self.speed(choose, steps)

    def fixed(self, likely: float, masks: int, tree: bool, steps: int = 400) -> float:
        self.costs = StepCosts()

        def choose(drafts: list[list[float]]) -> list[Shape]:
            shapes = []
            for chances in drafts:
                count = 0
                while count < len(chances) and chances[count] >= likely:
                    count += 1
                runs = [masks if tree else 0] * count + [masks]
                shapes.append(Shape(count, tuple(runs)))
            return shapes

        return self.speed(choose, steps)

    def best_fixed(self) -> float:
        return max(
            self.fixed(likely, masks, tree)
            for likely in (0.2, 0.4)
            for masks in range(1, MASKS + 1)
            for tree in (False, True)
        )


@pytest.mark.parametrize(("batch", "skill"), [(1, 0.05), (1, 1.0), (4, 1.0), (4, 4.0), (16, 4.0)])
@pytest.mark.parametrize("cost", [memory_bound, mixed])
def test_choosing_is_not_slower_than_one_token_a_step(cost: Cost, skill: float, batch: int) -> None:
    plain = batch / cost(batch, False)
    assert World(cost, batch, skill).adaptive() >= 0.98 * plain


@pytest.mark.parametrize("skill", [1.0, 4.0])
@pytest.mark.parametrize("cost", [memory_bound, mixed])
def test_choosing_comes_close_to_the_best_fixed_window(cost: Cost, skill: float) -> None:
    assert World(cost, 1, skill).adaptive(steps=600) >= 0.95 * World(cost, 1, skill).best_fixed()


def test_under_load_nothing_is_drafted() -> None:
    """A row costs what it can bring at most, however good the drafts are."""
    costs, value = StepCosts(), MaskValue()
    for rows in (1, 8, 16, 32, 64, 128) * 3:
        costs.observe(rows, False, compute_bound(rows, False))
        costs.observe(rows, True, compute_bound(rows, True))
    outlook = Outlook(chances_of_prefixes([0.9, 0.9]), value, MASKS)
    shapes = Planner(costs, "any").plan([outlook] * 16, 16)
    assert shapes == [NOTHING] * 16
    trees = Planner(costs, "tree").plan([outlook] * 16, 16)
    assert all(min(shape.runs) >= 1 for shape in trees)


def test_when_rows_are_free_everything_is_fed() -> None:
    costs, value = StepCosts(), MaskValue()
    for rows in (1, 8, 64) * 3:
        for masks in (False, True):
            costs.observe(rows, masks, 1.0)
    outlook = Outlook(chances_of_prefixes([0.9, 0.6, 0.5]), value, MASKS)
    (shape,) = Planner(costs, "any").plan([outlook], 1)
    assert shape.drafts == 3
    assert max(shape.runs) == MASKS


def test_a_prompt_in_the_same_step_does_not_make_windows_look_cheap() -> None:
    """They are charged what they add, not a share of a step that is long anyway."""
    costs, value = StepCosts(), MaskValue()
    for rows in (1, 16, 64, 128, 256, 512) * 3:
        for masks in (False, True):
            costs.observe(rows, masks, compute_bound(rows, masks))
    outlook = Outlook([], value, MASKS)
    assert Planner(costs, "any").plan([outlook], 256) == [NOTHING]


def test_a_tree_has_masks_after_each_outcome_and_a_chain_is_in_text_order() -> None:
    tree = Shape(2, (1, 2, 1))
    assert tree.rows == 6
    assert tree.window([5, 6, 7], MASK) == Window(
        [5, 6, MASK, MASK, MASK, MASK], parents=[-1, 0, -1, 0, 3, 1]
    )
    assert [tree.run(outcome) for outcome in range(3)] == [slice(2, 3), slice(3, 5), slice(5, 6)]
    chain = Shape(2, (0, 0, 3))
    assert chain.window([5, 6, 7], MASK) == Window([5, 6, MASK, MASK, MASK])
    assert chain.run(0) == slice(2, 2)
    assert chain.longer(4) == Shape(2, (0, 0, 4)) == chain.longer(4).longer(4)


def test_odds_start_at_the_confidence_and_follow_what_happens() -> None:
    odds = DraftOdds()
    assert odds.chance(*from_mask(1, 0.7)) == pytest.approx(0.7)
    for _ in range(100):
        odds.observe(from_mask(1, 0.72)[0], kept=False)
    assert odds.chance(*from_mask(1, 0.75)) < 0.1
    assert odds.chance(*from_mask(2, 0.75)) == pytest.approx(0.75)


def test_masks_are_worth_what_their_drafts_bring_above_the_price() -> None:
    engine = MaskValue()
    request = MaskValue(engine)
    for _ in range(300):
        request.observe([0.8, 0.3])
    price = PRICES.index(0.2)
    assert request.at(price, 2) == pytest.approx([0.6, 0.1], abs=0.05)
    assert MaskValue(engine).at(price, 2) == pytest.approx([0.6, 0.1], abs=0.1)
    assert request.at(PRICES.index(1.0), 2) == [0, 0]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests of each step that is planned."""
    found: list[int] = []
    choose = Planner._choose

    def count(planner: Planner, outlooks: list[Outlook], rows: int) -> list[Choice]:
        found.append(len(outlooks))
        return choose(planner, outlooks, rows)

    monkeypatch.setattr(Planner, "_choose", count)
    return found


def known_costs(cost: Cost) -> StepCosts:
    """Return costs that have been measured often enough."""
    costs = StepCosts()
    for rows in (1, 2, 4, 8, 16, 32, 64) * 15:
        for masks in (False, True):
            costs.observe(rows, masks, cost(rows, masks))
    return costs


def test_where_nothing_pays_few_steps_are_planned(planned: list[int]) -> None:
    """Until a request has drafts at hand, which end the rest at once."""
    planner, value = Planner(known_costs(compute_bound), "any"), MaskValue()
    idle, busy = Outlook([], value, MASKS), Outlook([0.9], value, MASKS)
    for _ in range(40):
        planner.plan([idle] * 8, 8)
    assert len(planned) == 5
    planner.plan([idle] * 7 + [busy], 8)
    assert len(planned) == 6


def test_drafts_no_likelier_than_those_refused_end_no_rest(planned: list[int]) -> None:
    planner, value = Planner(known_costs(compute_bound), "any"), MaskValue()
    for step in range(40):
        planner.plan([Outlook([0.9 if step % 2 == 0 else 0.8], value, MASKS)] * 8, 8)
    assert len(planned) == 5


def test_nothing_below_the_floor_is_fed() -> None:
    costs = known_costs(mixed)
    planner, value = Planner(costs, "any"), MaskValue()
    for _ in range(50):
        value.observe([0.0] * MASKS)
    floor = planner.floor(1, 1)
    added = [(mixed(1 + rows, False) - mixed(1, False)) / rows for rows in (1, 3, 7)]
    assert floor == pytest.approx(min(added) / mixed(1, False), rel=0.05)
    assert planner.plan([Outlook([0.95 * floor], value, MASKS)], 1) == [NOTHING]
    assert planner.plan([Outlook([0.9, 0.8, 0.9 * floor], value, MASKS)], 1)[0].drafts == 2


def test_curiosity_tires_where_masks_do_not_pay() -> None:
    planner, value = Planner(known_costs(compute_bound), "any"), MaskValue()
    steps = [
        step
        for step in range(2000)
        if planner.plan([Outlook([], value, MASKS)] * 8, 8) != [NOTHING] * 8
    ]
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[-1] == gaps[-2]
