"""The paper's block cache, no cache and the engine: the same answers at different costs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from helpers import letters, solo
from marslm.bench import block_barrier
from marslm.bench.block_barrier import BatchBench
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence

PARAMS = SamplingParams(strategy="mars", tau=0.5, block=4, max_new_tokens=18, ignore_eos=True)


@pytest.fixture
def queue() -> list[list[int]]:
    return [letters(length, random.Random(length)) for length in (3, 11, 6, 20, 4, 9, 15)]


def test_answers_do_not_depend_on_the_way(
    fitted_model: MarsModel, queue: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[list[list[int]]] = []

    def spy(requests: list[Sequence]) -> int:
        answers.append([request.transcript.ids for request in requests])
        return sum(len(request.transcript.ids) for request in requests)

    monkeypatch.setattr(block_barrier, "_tokens", spy)
    bench = BatchBench(fitted_model, queue, PARAMS)
    bench.drain(3)
    for granularity in (None, 1, 4, 256):
        bench.drain_without(3, granularity)
    expected = [solo(fitted_model, prompt, PARAMS).ids for prompt in queue]
    assert answers == [expected] * 5


def test_a_barrier_costs_steps_and_no_cache_costs_rows(
    fitted_model: MarsModel, queue: list[list[int]]
) -> None:
    bench = BatchBench(fitted_model, queue, PARAMS)
    ours, without = bench.drain(3), bench.drain_without(3, None)
    fine, coarse = bench.drain_without(3, 2), bench.drain_without(3, 256)
    assert ours.steps < without.steps <= fine.steps  # the queue fills free slots at once
    assert coarse.steps == without.steps  # nobody waits before the end of an answer
    assert ours.rows < fine.rows < coarse.rows < without.rows
    assert {each.tokens for each in (ours, without, fine, coarse)} == {18 * len(queue)}


def test_alone_nobody_waits(fitted_model: MarsModel, queue: list[list[int]]) -> None:
    bench = BatchBench(fitted_model, queue[:1], PARAMS)
    steps = {bench.drain(1).steps, *(bench.drain_without(1, g).steps for g in (None, 3, 64))}
    assert len(steps) == 1


def test_rows_compare_with_ar_at_the_same_batch(
    fitted_model: MarsModel, queue: list[list[int]]
) -> None:
    heard: list[str] = []
    bench = BatchBench(fitted_model, queue, replace(PARAMS, max_new_tokens=6))
    rows = bench.rows([1, 4], [2, 8], heard.append)
    ways = ["ar", "ours", "no cache", "barrier", "barrier"]
    assert [row["way"] for row in rows] == ways * 2
    assert len(heard) == 10
    for row in rows:
        plain = next(r for r in rows if r["way"] == "ar" and r["batch"] == row["batch"])
        assert row["gain_in_steps"] == plain["steps"] / row["steps"]
        assert row["tokens"] == 6 * len(queue)
