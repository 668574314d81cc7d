"""A prompt that begins as another did is not computed again, and answers as if it were."""

from __future__ import annotations

import random

import pytest
from torch import Tensor

from helpers import letters, make_sequence, solo, with_random_adapter
from marslm.engine.api import answer_of
from marslm.engine.engine import Engine
from marslm.engine.prefixes import Prefixes
from marslm.models.loading import MarsModel
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.work import Work


def count_rows(engine: Engine) -> list[int]:
    """Return a list to which every forward adds its rows."""
    rows: list[int] = []
    forward = engine.runner.forward_with_hidden

    def spy(works: list[Work]) -> list[tuple[Tensor, Tensor]]:
        rows.append(sum(len(work.tokens) for work in works))
        return forward(works)

    engine.runner.forward_with_hidden = spy  # type: ignore[method-assign]
    return rows


@pytest.mark.parametrize("strategy", ["ar", "mars", "lossless-chain", "lossless-tree"])
def test_warm_answers_equal_cold_ones(fitted_model: MarsModel, strategy: str) -> None:
    """Shared system prompts, a conversation's next turn, the same prompt again; two slots."""
    model = with_random_adapter(fitted_model)
    engine = Engine(model, slots=2, pack=False, costs=AssumedCosts())
    generator = random.Random(1)
    system = letters(40, generator)
    params = SamplingParams(strategy=strategy, max_new_tokens=12, tau=0.3, ignore_eos=True)
    prompts = [system + letters(length, generator) for length in (1, 9, 4, 30)]
    prompts += [prompts[1], system[:25]]
    requests = [engine.add(prompt, params) for prompt in prompts]
    for _ in engine.run():
        pass
    turn = engine.add([*requests[3].tokens, *letters(3, generator)], params)
    for _ in engine.run():
        pass
    for request in [*requests, turn]:
        cold = solo(model, request.tokens[: request.prompt_length], params)
        assert answer_of(request).ids == cold.ids


def test_what_is_shared_is_computed_once(fitted_model: MarsModel) -> None:
    engine = Engine(fitted_model, slots=2, pack=False)
    rows = count_rows(engine)
    system = letters(60, random.Random(2))
    params = SamplingParams(strategy="ar", max_new_tokens=1)

    def rows_of(prompt: list[int]) -> int:
        rows.clear()
        engine.add(prompt, params)
        for _ in engine.run():
            pass
        return sum(rows)

    assert rows_of([*system, 5, 6]) == 62
    assert rows_of([*system, 7, 8, 9]) == 3
    assert rows_of([*system, 7, 8, 9]) == 1
    assert rows_of([*system[:10], 3]) == 1
    assert rows_of([3, *system]) == 61


def test_a_request_that_still_runs_lends_its_beginning(fitted_model: MarsModel) -> None:
    engine = Engine(fitted_model, slots=3, pack=False)
    system = letters(50, random.Random(3))
    params = SamplingParams(strategy="lossless-chain", max_new_tokens=20, ignore_eos=True)
    first = engine.add([*system, 4], params)
    engine.step()
    engine.step()
    rows = count_rows(engine)
    second = engine.add([*system, 9, 9], params)
    engine.step()
    assert rows[0] <= 2 + 4 + 4
    for _ in engine.run():
        pass
    for request in (first, second):
        cold = solo(fitted_model, request.tokens[: request.prompt_length], params)
        assert answer_of(request).ids == cold.ids


def test_requests_that_come_together_compute_a_shared_beginning_once(
    fitted_model: MarsModel,
) -> None:
    """They wait for the first one while others go on; nobody waits for a short beginning."""
    engine = Engine(fitted_model, slots=5, pack=False, token_budget=40)
    rows = count_rows(engine)
    generator = random.Random(4)
    system, params = letters(60, generator), SamplingParams(strategy="ar", max_new_tokens=1)
    prompts = [[*system, *letters(count, generator)] for count in (3, 5, 2, 4)]
    prompts.insert(1, letters(30, generator))
    requests = [engine.add(prompt, params) for prompt in prompts]
    for _ in engine.run():
        pass
    assert sum(rows) == 60 + 3 + 5 + 2 + 4 + 30
    for request, prompt in zip(requests, prompts, strict=True):
        assert answer_of(request).ids == solo(fitted_model, prompt, params).ids
    rows.clear()
    for rest in (5, 6):
        engine.add([1, 2, 3, *[rest] * 9], params)
    engine.step()
    assert rows == [24]


def test_who_waits_for_a_beginning_goes_on_when_it_will_not_come(fitted_model: MarsModel) -> None:
    engine = Engine(fitted_model, slots=3, pack=False, token_budget=16)
    generator = random.Random(5)
    system, params = letters(60, generator), SamplingParams(strategy="ar", max_new_tokens=3)
    first, second, old = (engine.add(prompt, params) for prompt in ([1], [2], [9, *system]))
    for _ in engine.run():
        pass
    leader, waiter, leaver = (engine.add([*system, each], params) for each in (5, 6, 7))
    engine.step()
    assert (leader.num_cached, waiter.num_cached, leaver.num_cached) == (16, 0, 0)
    engine.abort(leaver)
    engine.abort(leader)
    rows = count_rows(engine)
    again = engine.add([9, *system, 4], params)
    for _ in engine.run():
        pass
    for request in (first, second, old, waiter, again):
        prompt = request.tokens[: request.prompt_length]
        assert answer_of(request).ids == solo(fitted_model, prompt, params).ids
    assert sum(rows) == (61 - 16) + 2 + 1 + 2  # the leader's part, and all of the old prompt


def held(tokens: list[int], cached: int, slot: int | None = None) -> Sequence:
    sequence = make_sequence(tokens)
    sequence.advance(cached)
    sequence.slot = slot
    return sequence


def test_only_cells_before_a_cursor_count() -> None:
    """FAULTS 8: what lies behind it was computed from masks or wrong drafts."""
    prefixes = Prefixes()
    prefixes.keep(4, held([1, 2, 3, 4, 5], cached=3))
    assert prefixes.longest([1, 2, 3, 4, 5, 6], []) == (4, 3)
    assert prefixes.longest([1, 2], []) == (4, 1)  # one token is left to feed
    assert prefixes.longest([1, 9, 3], [held([1, 9, 3, 3], cached=2, slot=7)]) == (7, 2)
    assert prefixes.longest([8, 8], [])[1] == 0
    prefixes.take(4)
    assert prefixes.longest([1, 2, 3], []) == (0, 0)
