"""The engine in its thread: same answers, nothing lost, a slot for whoever comes next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import build_model, letters, solo
from marslm.engine.async_engine import (
    AnswerStream,
    AsyncEngine,
    EngineStoppedError,
    Piece,
    QueueFullError,
    RequestFailedError,
)
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.strategies.lossless import Lossless

PROMPTS = [letters(length, random.Random(length)) for length in (4, 12, 25, 7, 33)]
PARAMS = SamplingParams(max_new_tokens=30, strategy="lossless-chain")
SMALL = build_model("llama", hidden_size=16, layers=1, context=64)


@pytest.fixture
def engine(fitted_model: MarsModel) -> Iterator[AsyncEngine]:
    running = AsyncEngine(Engine(fitted_model, slots=2, pack=False), max_waiting=3)
    yield running
    running.close()


async def read(stream: AnswerStream) -> list[Piece]:
    return [piece async for piece in stream]


async def answer(engine: AsyncEngine, prompt: list[int], params: SamplingParams) -> list[Piece]:
    return await read(await engine.submit([(prompt, params)]))


async def until_idle(engine: AsyncEngine) -> None:
    while engine.open_requests or engine.engine.busy:
        await asyncio.sleep(0.001)


def test_answers_equal_solo_answers(engine: AsyncEngine, fitted_model: MarsModel) -> None:
    async def run() -> list[list[Piece]]:
        return await asyncio.gather(*(answer(engine, prompt, PARAMS) for prompt in PROMPTS))

    for prompt, pieces in zip(PROMPTS, asyncio.run(run()), strict=True):
        alone = solo(fitted_model, prompt, PARAMS)
        assert [token for piece in pieces for token in piece.tokens] == alone.ids
        assert "".join(piece.text for piece in pieces) == alone.text
        assert [len(piece.tokens) for piece in pieces] == alone.runs
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason == alone.finish_reason
        assert pieces == sorted(pieces, key=lambda piece: piece.time)


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.booleans()), max_size=12))
def test_whoever_leaves_and_whenever_the_others_are_unharmed(
    fitted_model: MarsModel, visits: list[tuple[int, int, bool]]
) -> None:
    """Each visitor takes some pieces and leaves, cancelled or by abort, or stays to the end."""
    engine = AsyncEngine(Engine(fitted_model, slots=2, pack=False), max_waiting=20)

    async def visit(which: int, pieces: int, cancelled: bool) -> None:
        if cancelled:
            task = asyncio.create_task(engine.submit([(PROMPTS[which], PARAMS)]))
            await asyncio.sleep(0)
            task.cancel()
            return
        stream = await engine.submit([(PROMPTS[which], PARAMS)])
        found: list[int] = []
        async for piece in stream:
            found += piece.tokens
            if len(found) == pieces:
                stream.abort()
                return
        assert found == solo(fitted_model, PROMPTS[which], PARAMS).ids

    async def run() -> None:
        await asyncio.gather(*(visit(*each) for each in visits))
        await asyncio.wait_for(until_idle(engine), 20)

    try:
        asyncio.run(run())
        assert engine.engine.running == engine.engine.waiting == 0
    finally:
        engine.close()


def test_an_abort_ends_the_request_before_its_next_step_but_one(engine: AsyncEngine) -> None:
    """A step may be under way when the abort comes; after it there is none."""
    long = SamplingParams(max_new_tokens=3000, ignore_eos=True, strategy="ar")

    async def run() -> tuple[int, int]:
        stream = await engine.submit([(PROMPTS[0], long)])
        pieces = aiter(stream)
        await anext(pieces)
        before = len(stream.sequences[0].runs)
        stream.abort()
        rest = [piece async for piece in pieces]
        assert rest[-1].finish_reason == "abort"
        await until_idle(engine)
        return before, len(stream.sequences[0].runs)

    before, after = asyncio.run(run())
    assert after <= before + 2
    assert engine.engine.running == 0


def test_the_queue_is_bounded_and_all_or_none(engine: AsyncEngine) -> None:
    long = SamplingParams(max_new_tokens=200, ignore_eos=True)

    async def run() -> None:
        first = await engine.submit([(PROMPTS[0], long)] * 4)
        with pytest.raises(QueueFullError):
            await engine.submit([(PROMPTS[0], long)] * 2)
        assert engine.open_requests == 4
        last = await engine.submit([(PROMPTS[1], long)])
        first.abort()
        last.abort()
        await until_idle(engine)
        await answer(engine, PROMPTS[0], PARAMS)

    asyncio.run(run())


def test_what_never_finds_room_is_not_told_to_try_again(engine: AsyncEngine) -> None:
    async def run() -> None:
        with pytest.raises(
            InputError, match="6 answers are asked for at once, and there is room for 5"
        ):
            await engine.submit([(PROMPTS[0], PARAMS)] * 6)
        await read(await engine.submit([(PROMPTS[0], PARAMS)] * 5))

    asyncio.run(run())


def test_a_bad_request_takes_the_good_ones_beside_it_with_it(engine: AsyncEngine) -> None:
    async def run() -> None:
        with pytest.raises(InputError, match="is empty"):
            await engine.submit([(PROMPTS[0], PARAMS), ([], PARAMS)])
        await until_idle(engine)

    asyncio.run(run())
    assert engine.engine.waiting == 0


@pytest.mark.parametrize("place", ["propose", "forward_with_hidden", "accept", "commit"])
def test_a_fault_of_one_request_harms_no_other(
    fitted_model: MarsModel, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The third step breaks for the request with seed 666, wherever in the step that is."""
    engine = AsyncEngine(Engine(fitted_model, slots=3, pack=False))
    bad = replace(PARAMS, seed=666)
    break_at(place, engine.engine, monkeypatch)

    async def run() -> list[object]:
        wishes = [(prompt, bad if index == 1 else PARAMS) for index, prompt in enumerate(PROMPTS)]
        answers = (answer(engine, *wish) for wish in wishes)
        return await asyncio.gather(*answers, return_exceptions=True)

    found = asyncio.run(run())
    assert engine.engine.running == engine.open_requests == 0
    engine.close()
    failed = found.pop(1)
    assert isinstance(failed, RequestFailedError)
    assert isinstance(failed.__cause__, ArithmeticError)
    for prompt, pieces in zip([*PROMPTS[:1], *PROMPTS[2:]], found, strict=True):
        assert isinstance(pieces, list)
        tokens = [token for piece in pieces for token in piece.tokens]
        assert tokens == solo(fitted_model, prompt, PARAMS).ids


def break_at(place: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one part of a step raise for the request with seed 666 in its third step."""
    owner: object = {"forward_with_hidden": engine.runner, "commit": Sequence}.get(place, Lossless)
    real = getattr(owner, place)

    def broken(*arguments: Any) -> Any:
        sequences = engine._scheduler.running if place == "forward_with_hidden" else flat(arguments)
        slots = {work.slot for work in arguments[0]} if place == "forward_with_hidden" else None
        for sequence in sequences:
            ill = sequence.params.seed == 666 and len(sequence.runs) == 2
            if ill and (slots is None or sequence.slot in slots):
                raise ArithmeticError("a fault")
        return real(*arguments)

    monkeypatch.setattr(owner, place, broken)


def flat(arguments: ListOf[Any]) -> list[Sequence]:
    lists = [part if isinstance(part, list) else [part] for part in arguments]
    return [part for each in lists for part in each if isinstance(part, Sequence)]


def test_closing_ends_what_runs(fitted_model: MarsModel) -> None:
    async def run() -> list[Piece]:
        engine = AsyncEngine(Engine(fitted_model, slots=1, pack=False))
        long = SamplingParams(max_new_tokens=3000, ignore_eos=True)
        stream = await engine.submit([(PROMPTS[0], long)])
        await asyncio.to_thread(engine.close)
        return await read(stream)

    assert asyncio.run(run())[-1].finish_reason == "abort"


def test_a_closed_engine_refuses_at_once() -> None:
    engine = AsyncEngine(Engine(SMALL, slots=1, pack=False))
    engine.close()

    async def run() -> None:
        with pytest.raises(EngineStoppedError):
            await asyncio.wait_for(engine.submit([(PROMPTS[0], PARAMS)]), 20)

    asyncio.run(run())
    assert engine.open_requests == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_a_fault_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = AsyncEngine(Engine(SMALL, slots=1, pack=False))

    def broken() -> None:
        raise ArithmeticError("a fault outside any request")

    monkeypatch.setattr(engine.engine, "step_contained", broken)

    async def run() -> None:
        stream = await engine.submit([(PROMPTS[0], PARAMS)])
        with pytest.raises(EngineStoppedError):
            await asyncio.wait_for(read(stream), 20)
        with pytest.raises(EngineStoppedError):
            await asyncio.wait_for(engine.submit([(PROMPTS[0], PARAMS)]), 20)
        stream.abort()

    asyncio.run(run())
    engine.close()
    assert not engine.alive
    assert engine.open_requests == 0


def test_queue_time_is_told(engine: AsyncEngine) -> None:
    async def run() -> AnswerStream:
        stream = await engine.submit([(prompt, PARAMS) for prompt in PROMPTS])
        await read(stream)
        return stream

    stream = asyncio.run(run())
    waits = [admitted - stream.submitted for admitted in stream.admitted if admitted]
    assert len(waits) == len(PROMPTS)
    assert min(waits) >= 0
    assert max(waits[2:]) > max(waits[:2])


def test_requests_submitted_together_share_a_stream(
    engine: AsyncEngine, fitted_model: MarsModel
) -> None:
    async def run() -> list[Piece]:
        return await read(await engine.submit([(prompt, PARAMS) for prompt in PROMPTS]))

    pieces = asyncio.run(run())
    for index, prompt in enumerate(PROMPTS):
        mine = [piece for piece in pieces if piece.index == index]
        found = [token for piece in mine for token in piece.tokens]
        assert found == solo(fitted_model, prompt, PARAMS).ids
        assert [bool(piece.finish_reason) for piece in mine] == [False] * (len(mine) - 1) + [True]
