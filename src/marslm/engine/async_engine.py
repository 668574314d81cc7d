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
from typing import TypeAlias

from marslm.engine.engine import Engine, StepEvent
from marslm.errors import InputError
from marslm.runtime.logprobs import TokenLogprobs
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import FinishReason

Request: TypeAlias = tuple[list[int], SamplingParams]
"""A prompt's token ids and how to answer it."""

Command: TypeAlias = "Callable[[], None] | None"
"""Something to do between two steps; None ends the thread."""


class QueueFullError(Exception):
    """More requests wait than are allowed to."""


class EngineStoppedError(Exception):
    """The engine stopped before the answer had ended, or had begun."""


class RequestFailedError(Exception):
    """A request ended by a fault in this program; its cause is the fault."""


@dataclass(frozen=True)
class Piece:
    """What one step brought one request.

    index: which of the requests that were submitted together. tokens: the committed run. text: what
    can no longer change, perhaps nothing. logprobs: the tokens', if they were asked for.
    finish_reason: set on a request's last piece. time: when the step ended, by
    `time.perf_counter`.
    """

    index: int
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs]
    finish_reason: FinishReason | None
    time: float


class AnswerStream:
    """The pieces of requests that were submitted together, as they come; iterate it once.

    sequences: the engine's requests, to be read only once all have ended. submitted, admitted: when
    they came and when the first step of each began, by `time.perf_counter`.
    """

    def __init__(
        self,
        sequences: list[Sequence],
        submitted: float,
        loop: asyncio.AbstractEventLoop,
        abort: Callable[[AnswerStream], None],
    ) -> None:
        """`loop`: where the pieces are read; `abort`: how to end the requests."""
        self.sequences = sequences
        self.submitted = submitted
        self.admitted: list[float | None] = [None] * len(sequences)
        self._loop = loop
        self._abort = abort
        self._pieces: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Yield pieces until each request has had its last.

        Raises RequestFailedError if a fault ended one of them, TimeoutError once expired, and
        EngineStoppedError once `AsyncEngine.interrupt` was called.
        """
        open_requests = len(self.sequences)
        while open_requests:
            piece = await self._pieces.get()
            if isinstance(piece, Exception):
                raise piece
            open_requests -= piece.finish_reason is not None
            yield piece

    def put(self, piece: Piece | Exception) -> None:
        """Append a piece, or what ends the stream early; may be called from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and its readers with it
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    def expire(self) -> None:
        """Have the reader raise TimeoutError; the requests go on until they are aborted."""
        self.put(TimeoutError())

    def abort(self) -> None:
        """End what has not ended, wherever it is, before the next step."""
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
        self._open: dict[int, tuple[AnswerStream, int]] = {}
        self._stopped = False
        self._count = 0
        self._count_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="marslm-engine", daemon=True)
        self._thread.start()

    @property
    def open_requests(self) -> int:
        """Requests that wait or run, those on their way to the engine included."""
        return self._count

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    async def submit(self, requests: ListOf[Request]) -> AnswerStream:
        """Queue prompts of token ids, all or none, and return the stream of their answers.

        Raises InputError for one that cannot be answered and for more than there is ever room for,
        QueueFullError when too many wait and EngineStoppedError once the thread has ended.
        """
        self._reserve(len(requests))
        loop, now = asyncio.get_running_loop(), time.perf_counter()
        added: Future[AnswerStream] = Future()
        self._commands.put(lambda: self._resolve(added, requests, now, loop))
        if self._stopped:
            self._refuse_rest()
        try:
            return await asyncio.wrap_future(added)
        except asyncio.CancelledError:
            added.add_done_callback(_abort_unread)  # nobody is left to read it
            raise

    def interrupt(self) -> None:
        """Have the readers of all open requests raise EngineStoppedError."""
        self._commands.put(self._interrupt)

    def _interrupt(self) -> None:
        for stream in {id(stream): stream for stream, _ in self._open.values()}.values():
            stream.put(EngineStoppedError("the engine stopped"))

    def close(self) -> None:
        """End what still runs as aborted, then the thread; returns when it has ended."""
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._obey():
                if self.engine.busy:
                    self._step()
        finally:
            self._stop()

    def _obey(self) -> bool:
        """Do what has been asked for; wait for it if there is nothing else. False: to end."""
        idle = not self.engine.busy
        while idle or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                self._abort(*list(self._open))
                return False
            command()
            idle = False
        return True

    def _stop(self) -> None:
        """Leave nobody waiting, whether the thread was told to end or a fault ended it."""
        self._stopped = True
        self._interrupt()
        for number in list(self._open):
            self._close(number)
        self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Carry out what nobody else will: whoever asks after `_stop` has looked calls this."""
        with suppress(queue.Empty):
            while True:
                command = self._commands.get_nowait()
                if command is not None:
                    command()

    def _reserve(self, requests: int) -> None:
        most = self.engine.slots + self.max_waiting
        if requests > most:
            raise InputError(
                f"{requests} answers are asked for at once, and there is room for {most}: ask for "
                "fewer, or in several requests"
            )
        with self._count_lock:
            if self._count + requests > most:
                raise QueueFullError(f"{self._count} requests wait or run already")
            self._count += requests

    def _leave(self, requests: int) -> None:
        with self._count_lock:
            self._count -= requests

    def _resolve(
        self,
        added: Future[AnswerStream],
        requests: ListOf[Request],
        now: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Add the requests unless that was cancelled; leave the stream or the error in `added`."""
        if not added.set_running_or_notify_cancel():
            self._leave(len(requests))
            return
        try:
            if self._stopped:
                raise EngineStoppedError("the engine has stopped")
            added.set_result(self._add(requests, now, loop))
        except Exception as error:
            self._leave(len(requests))
            added.set_exception(error)

    def _add(
        self, requests: ListOf[Request], now: float, loop: asyncio.AbstractEventLoop
    ) -> AnswerStream:
        sequences: list[Sequence] = []
        try:
            for prompt, params in requests:
                sequences.append(self.engine.add(prompt, params))
        except Exception:
            for sequence in sequences:
                self.engine.abort(sequence)
            raise
        stream = AnswerStream(sequences, now, loop, self._ask_to_abort)
        self._open |= {s.number: (stream, index) for index, s in enumerate(sequences)}
        return stream

    def _ask_to_abort(self, stream: AnswerStream) -> None:
        self._commands.put(lambda: self._abort(*(s.number for s in stream.sequences)))

    def _abort(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._open:
                stream, index = self._open[number]
                sequence = stream.sequences[index]
                self.engine.abort(sequence)
                self._deliver(StepEvent(sequence, [], sequence.transcript.take_new_text()))

    def _step(self) -> None:
        start = time.perf_counter()
        events = self.engine.step_contained()
        for stream, index in self._open.values():
            if stream.admitted[index] is None and stream.sequences[index].started:
                stream.admitted[index] = start
        for event in events:
            self._deliver(event)

    def _deliver(self, event: StepEvent) -> None:
        stream, index = self._open[event.sequence.number]
        reason = event.sequence.transcript.finish_reason
        if reason is not None:
            self._close(event.sequence.number)
        if event.sequence.fault is None:
            stream.put(
                Piece(index, event.tokens, event.text, event.logprobs, reason, time.perf_counter())
            )
        else:
            failure = RequestFailedError("the request failed inside the engine")
            failure.__cause__ = event.sequence.fault
            stream.put(failure)

    def _close(self, number: int) -> None:
        del self._open[number]
        self._leave(1)


def _abort_unread(added: Future[AnswerStream]) -> None:
    if not added.cancelled() and added.exception() is None:
        added.result().abort()
