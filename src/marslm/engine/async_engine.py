"""An engine in a thread of its own, for callers that live in an event loop.

The thread alone touches the engine: requests and aborts reach it as commands that it carries out
between two steps, and what a step brought goes back to each request's own queue. Knows nothing
about HTTP, prompts as text or what the answers are for.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as ListOf
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from marslm.engine.engine import Engine, StepEvent
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import FinishReason

T = TypeVar("T")

Request: TypeAlias = tuple[list[int], SamplingParams]
"""A prompt's token ids and how to answer it."""

Command: TypeAlias = "Callable[[], None] | None"
"""Something to do between two steps; None ends the thread."""


class QueueFullError(Exception):
    """More requests wait than are allowed to."""


class RequestFailedError(Exception):
    """A request ended by a fault in this program; its cause is the fault."""


@dataclass(frozen=True)
class Piece:
    """What one step brought one request.

    tokens: the committed run. text: what can no longer change, perhaps nothing. finish_reason: set
    on the last piece. time: when the step ended, by `time.perf_counter`.
    """

    tokens: list[int]
    text: str
    finish_reason: FinishReason | None
    time: float


class AnswerStream:
    """The pieces of one answer, as they come; iterate it once.

    sequence: the engine's request, to be read only once the answer has ended. submitted, admitted:
    when the request came and when its first step began, by `time.perf_counter`.
    """

    def __init__(
        self,
        sequence: Sequence,
        submitted: float,
        loop: asyncio.AbstractEventLoop,
        abort: Callable[[AnswerStream], None],
    ) -> None:
        """`loop`: where the pieces are read; `abort`: how to end the request."""
        self.sequence = sequence
        self.submitted = submitted
        self.admitted: float | None = None
        self._loop = loop
        self._abort = abort
        self._pieces: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Yield pieces up to the last one, which carries the finish reason.

        Raises RequestFailedError if a fault ended the request.
        """
        while True:
            piece = await self._pieces.get()
            if isinstance(piece, Exception):
                raise RequestFailedError("the request failed inside the engine") from piece
            yield piece
            if piece.finish_reason is not None:
                return

    def put(self, piece: Piece | Exception) -> None:
        """Append a piece, or the fault that ends the stream; called from the engine's thread."""
        with suppress(RuntimeError):  # the loop has ended, and its readers with it
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    def abort(self) -> None:
        """End the request before the next step, wherever it is; nothing happens if it has ended."""
        self._abort(self)


class AsyncEngine:
    """Runs an engine's steps in a thread while there is something to do.

    max_waiting: requests beyond the engine's slots that may wait; more are refused.
    """

    def __init__(self, engine: Engine, *, max_waiting: int = 64) -> None:
        """Start the thread, idle."""
        self.engine = engine
        self.max_waiting = max_waiting
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._streams: dict[int, AnswerStream] = {}
        self._on_their_way = 0
        self._thread = threading.Thread(target=self._run, name="marslm-engine", daemon=True)
        self._thread.start()

    @property
    def open_requests(self) -> int:
        """Requests that wait or run, those on their way to the engine included."""
        return self._on_their_way + len(self._streams)

    async def submit(self, requests: ListOf[Request]) -> list[AnswerStream]:
        """Queue prompts of token ids, all or none, and return their streams.

        Raises InputError for one that cannot be answered and QueueFullError when too many wait.
        """
        if self.open_requests + len(requests) > self.engine.slots + self.max_waiting:
            raise QueueFullError(f"{self.open_requests} requests wait or run already")
        loop, now = asyncio.get_running_loop(), time.perf_counter()
        added: Future[list[AnswerStream]] = Future()
        self._on_their_way += len(requests)
        self._commands.put(lambda: _resolve(added, lambda: self._add(requests, now, loop)))
        try:
            return await asyncio.wrap_future(added)
        except asyncio.CancelledError:
            added.add_done_callback(_abort_all)  # nobody is left to read them
            raise
        finally:
            self._on_their_way -= len(requests)

    def close(self) -> None:
        """End what still runs as aborted, then the thread; returns when it has ended."""
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            for command in self._take_commands():
                if command is None:
                    for stream in list(self._streams.values()):
                        self._abort(stream)
                    return
                command()
            if self.engine.busy:
                self._step()

    def _take_commands(self) -> list[Command]:
        """Return what has been asked for; wait for it if there is nothing else to do."""
        commands = [] if self.engine.busy else [self._commands.get()]
        while not self._commands.empty():
            commands.append(self._commands.get())
        return commands

    def _add(
        self, requests: ListOf[Request], now: float, loop: asyncio.AbstractEventLoop
    ) -> list[AnswerStream]:
        sequences: list[Sequence] = []
        try:
            for prompt, params in requests:
                sequences.append(self.engine.add(prompt, params))
        except Exception:
            for sequence in sequences:
                self.engine.abort(sequence)
            raise
        streams = [
            AnswerStream(
                sequence, now, loop, lambda stream: self._commands.put(lambda: self._abort(stream))
            )
            for sequence in sequences
        ]
        self._streams |= {stream.sequence.number: stream for stream in streams}
        return streams

    def _abort(self, stream: AnswerStream) -> None:
        sequence = stream.sequence
        if sequence.number in self._streams:
            self.engine.abort(sequence)
            self._deliver(StepEvent(sequence, [], sequence.transcript.take_new_text()))

    def _step(self) -> None:
        start = time.perf_counter()
        try:
            events = self.engine.step()
        except Exception as error:
            self._fail_running(error)
            return
        for stream in self._streams.values():
            if stream.admitted is None and stream.sequence.started:
                stream.admitted = start
        for event in events:
            self._deliver(event)

    def _fail_running(self, error: Exception) -> None:
        """End the requests of a step that broke; those that wait are none of its business."""
        for stream in list(self._streams.values()):
            if stream.sequence.slot is not None:
                self.engine.abort(stream.sequence)
                del self._streams[stream.sequence.number]
                stream.put(error)

    def _deliver(self, event: StepEvent) -> None:
        stream = self._streams[event.sequence.number]
        reason = event.sequence.transcript.finish_reason
        if reason is not None:
            del self._streams[event.sequence.number]
        stream.put(Piece(event.tokens, event.text, reason, time.perf_counter()))


def _resolve(future: Future[T], work: Callable[[], T]) -> None:
    """Do `work` unless it was cancelled, and leave its result or its error in `future`."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def _abort_all(added: Future[list[AnswerStream]]) -> None:
    if not added.cancelled() and added.exception() is None:
        for stream in added.result():
            stream.abort()
