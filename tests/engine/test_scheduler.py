"""Who takes part in a step, and with how many tokens."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from marslm.engine.scheduler import Scheduler
from marslm.models.tiny import build_tokenizer
from marslm.runtime.cache import SlotCache
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import Transcript

TOKENIZER = build_tokenizer()


def make_scheduler(slots: int, token_budget: int) -> tuple[Scheduler, SlotCache]:
    cache = SlotCache(
        layers=0,
        slots=slots,
        kv_heads=1,
        max_length=1,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return Scheduler(cache, token_budget), cache


def request(number: int, length: int, cached: int = 0) -> Sequence:
    params = SamplingParams()
    transcript = Transcript(TOKENIZER, params, frozenset())
    # No two have a beginning in common, or the later one would find it in the cache.
    prompt = list(range(100 * number, 100 * number + length))
    sequence = Sequence(number, prompt, params, transcript)
    sequence.advance(cached)
    return sequence


def decoding(number: int, pending: int = 1) -> Sequence:
    """Return a request that has read its prompt of four and has `pending` tokens to feed."""
    sequence = request(number, 4, cached=3)
    if pending > 1:
        sequence.commit([50] * (pending - 1))
    return sequence


def plan(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Return (number, tokens) of each request in the next step."""
    return [(sequence.number, len(chunk)) for sequence, chunk in scheduler.schedule()]


def test_decoding_requests_come_before_prompts() -> None:
    scheduler, _ = make_scheduler(slots=4, token_budget=100)
    for sequence in (request(0, 9), decoding(1), request(2, 5), decoding(3, pending=3)):
        scheduler.add(sequence)
    assert plan(scheduler) == [(1, 1), (3, 3), (0, 9), (2, 5)]


def test_prompts_share_the_rest_of_the_budget_oldest_first() -> None:
    scheduler, _ = make_scheduler(slots=4, token_budget=10)
    for sequence in (request(0, 6), decoding(1), request(2, 50), request(3, 5)):
        scheduler.add(sequence)
    assert plan(scheduler) == [(1, 1), (0, 6), (2, 3)]


def test_a_chunk_is_the_next_part_of_the_prompt() -> None:
    scheduler, _ = make_scheduler(slots=1, token_budget=4)
    sequence = request(0, 10)
    scheduler.add(sequence)
    chunks = []
    while sequence.num_cached < 9:
        [(_, chunk)] = scheduler.schedule()
        chunks.append(chunk)
        sequence.advance(len(chunk))
    assert chunks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_last_token_of_a_chunked_prompt_is_not_overtaken() -> None:
    """With one token of its prompt to go it is as near an answer as those that decode."""
    scheduler, _ = make_scheduler(slots=3, token_budget=2)
    for sequence in (request(0, 9, cached=8), request(1, 9, cached=3), decoding(2)):
        scheduler.add(sequence)
    assert plan(scheduler) == [(0, 1), (2, 1)]


def test_first_come_first_served() -> None:
    scheduler, _ = make_scheduler(slots=2, token_budget=100)
    sequences = [request(number, 3) for number in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert plan(scheduler) == [(0, 3), (1, 3)]
    assert plan(scheduler) == [(0, 3), (1, 3)]
    scheduler.retire(sequences[1])
    assert plan(scheduler) == [(0, 3), (2, 3)]
    assert [sequence.number for sequence in scheduler.waiting] == [3, 4]


def test_a_retired_request_gives_its_slot_back() -> None:
    scheduler, cache = make_scheduler(slots=1, token_budget=100)
    first, second = request(0, 3), request(1, 3)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.schedule()
    assert (first.slot, second.slot, cache.free_slots) == (0, None, 0)
    scheduler.retire(first)
    assert (first.slot, cache.free_slots) == (None, 1)
    scheduler.schedule()
    assert second.slot == 0


def test_a_waiting_request_may_be_retired() -> None:
    scheduler, cache = make_scheduler(slots=1, token_budget=100)
    sequences = [request(number, 3) for number in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.schedule()
    scheduler.retire(sequences[1])
    assert [sequence.number for sequence in scheduler.waiting] == [2]
    assert cache.free_slots == 0


def test_nothing_to_do() -> None:
    scheduler, _ = make_scheduler(slots=1, token_budget=100)
    assert scheduler.schedule() == []


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 29)), min_size=1, max_size=8),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_a_step_keeps_to_the_budget_and_wastes_none_of_it(
    requests: list[tuple[int, int]], budget: int, slots: int
) -> None:
    scheduler, _ = make_scheduler(slots, budget)
    for number, (length, cached) in enumerate(requests):
        scheduler.add(request(number, length, cached=min(cached, length - 1)))
    chunks = scheduler.schedule()
    fed = sum(len(chunk) for _, chunk in chunks)
    pending = sum(len(sequence.pending) for sequence in scheduler.running)
    assert len(scheduler.running) == min(slots, len(requests))
    assert fed == min(budget, pending)
    for sequence, chunk in chunks:
        assert chunk == sequence.pending[: len(chunk)] != []
