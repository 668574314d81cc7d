"""The answers of one HTTP request, from the engine's queue to the last piece.

Deadline, clean-up, metrics, the trace and the log line are here, once for chats and completions,
streamed or not. Knows nothing about JSON shapes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from marslm.engine.async_engine import (
    AnswerStream,
    EngineStoppedError,
    Piece,
    QueueFullError,
    Request,
)
from marslm.errors import InputError
from marslm.serve import errors, tracing
from marslm.serve.errors import ApiError
from marslm.serve.schemas import Usage
from marslm.serve.service import Service

logger = logging.getLogger("marslm.serve.request")


class Answers:
    """Reads a stream of pieces and accounts for it; `close` frees whatever has not ended."""

    def __init__(self, service: Service, stream: AnswerStream, prompt_tokens: int) -> None:
        """Start the clock."""
        self._service = service
        self._stream = stream
        self._prompt_tokens = prompt_tokens
        self._last: list[float | None] = [None] * len(stream.sequences)
        self._first_token: float | None = None
        left = service.config.timeout - (time.perf_counter() - stream.submitted)
        self._deadline = asyncio.get_running_loop().call_later(left, stream.expire)
        self._closed = False

    @classmethod
    async def ask(cls, service: Service, requests: list[Request], prompt_tokens: int) -> Answers:
        """Queue the requests; ApiError if there is no room or one cannot be answered."""
        try:
            stream = await service.engine.submit(requests)
        except QueueFullError as error:
            wait = service.seconds_until_room()
            message = f"{error}: try again in {wait} s"
            raise ApiError(429, message, code="queue_full", retry_after=wait) from error
        except EngineStoppedError as error:
            raise _shutting_down() from error
        except InputError as error:
            raise errors.of_input(error) from error
        service.metrics.prompt_tokens.inc(prompt_tokens)
        return cls(service, stream, prompt_tokens)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the pieces of all answers as they come; ApiError if they end otherwise."""
        try:
            async for piece in self._stream:
                self._account(piece)
                yield piece
        except TimeoutError as error:
            message = f"the request took longer than {self._service.config.timeout:g} s"
            raise ApiError(504, message, code="timeout") from error
        except EngineStoppedError as error:
            raise _shutting_down() from error
        except Exception as error:
            logger.error("request failed", exc_info=error)
            raise errors.of_failure() from error

    def close(self) -> None:
        """Abort what has not ended; write the metrics, the trace and the log line, once."""
        if self._closed:
            return
        self._closed = True
        self._deadline.cancel()
        self._stream.abort()
        now, stream = time.perf_counter(), self._stream
        seconds = now - stream.submitted
        self._service.metrics.whole.observe(seconds)
        self._service.note_duration(seconds)
        for sequence, admitted in zip(stream.sequences, stream.admitted, strict=True):
            queued = None if admitted is None else admitted - stream.submitted
            self._service.metrics.finished(sequence, queued)
        facts = self._facts(seconds)
        tracing.record(self._service.tracer, self._service.config.model_name, facts, seconds)
        logger.info("answered", extra=facts)

    @property
    def count(self) -> int:
        """How many answers there are."""
        return len(self._stream.sequences)

    @property
    def usage(self) -> Usage:
        """Tokens and forwards so far."""
        tokens = sum(len(sequence.transcript.ids) for sequence in self._stream.sequences)
        forwards = sum(len(sequence.runs) for sequence in self._stream.sequences)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=tokens,
            total_tokens=self._prompt_tokens + tokens,
            forwards=forwards,
            tokens_per_forward=round(tokens / max(1, forwards), 4),
        )

    def _account(self, piece: Piece) -> None:
        if not piece.tokens:
            return
        last = self._last[piece.index]
        self._last[piece.index] = piece.time
        gap = None if last is None else piece.time - last
        self._service.metrics.piece(len(piece.tokens), gap)
        if gap is not None:
            self._service.pace.add(gap, len(piece.tokens))
        if self._first_token is None:
            self._first_token = piece.time - self._stream.submitted
            self._service.metrics.first_token.observe(self._first_token)

    def _facts(self, seconds: float) -> dict[str, object]:
        ends = [s.transcript.finish_reason or "abort" for s in self._stream.sequences]
        return {
            **self.usage.model_dump(),
            "finish_reasons": ends,
            "time_to_first_token": self._first_token,
            "seconds": seconds,
        }


def _shutting_down() -> ApiError:
    message = "the server is shutting down: ask another, or again later"
    return ApiError(503, message, code="shutting_down")
