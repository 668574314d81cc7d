"""From a validated request to its response, streamed or whole; a `Shape` says how it looks.

Knows nothing about how answers are decoded.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from marslm.engine.async_engine import Piece
from marslm.runtime.stopping import FinishReason
from marslm.serve.answers import Answers
from marslm.serve.errors import ApiError
from marslm.serve.schemas import Sampling

CLIENT_GONE = 499
"""The status that logs show for a client that left; nobody receives it."""


class Shape(Protocol):
    """How one kind of response looks.

    prefix: of ids. object, chunk_object: the names of a whole response and of a streamed part.
    """

    prefix: str
    object: str
    chunk_object: str

    def openings(self, answers: int) -> list[dict[str, Any]]:
        """Return the choices that a stream sends before anything is written."""

    def part(self, piece: Piece) -> dict[str, Any]:
        """Return a streamed choice, without its finish reason."""

    def whole(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """Return a choice, without its finish reason."""


class EventStream(StreamingResponse):
    """Server-sent events of answers, which are closed however the response ends."""

    def __init__(self, answers: Answers, events: AsyncIterator[str]) -> None:
        """Tell proxies to pass events on as they come."""
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the end or until the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def respond(request: Request, body: Sampling, shape: Shape, answers: Answers) -> Response:
    """Return the response that carries the answers."""
    head = {
        "id": f"{shape.prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        options = body.stream_options
        with_usage = options is not None and options.include_usage
        head["object"] = shape.chunk_object
        return EventStream(answers, _events(answers, shape, head, with_usage))
    head["object"] = shape.object
    try:
        return await _unless_gone(request, _whole(answers, shape, head))
    finally:
        answers.close()


async def _whole(answers: Answers, shape: Shape, head: dict[str, Any]) -> Response:
    pieces: dict[int, list[Piece]] = {}
    async for piece in answers.pieces():
        pieces.setdefault(piece.index, []).append(piece)
    choices = [
        {**shape.whole(index, mine), "finish_reason": _reason(mine[-1].finish_reason)}
        for index, mine in sorted(pieces.items())
    ]
    return JSONResponse({**head, "choices": choices, "usage": answers.usage.model_dump()})


async def _events(
    answers: Answers, shape: Shape, head: dict[str, Any], with_usage: bool
) -> AsyncIterator[str]:
    usage = {"usage": None} if with_usage else {}
    try:
        for choice in shape.openings(answers.count):
            yield _event({**head, "choices": [{**choice, "finish_reason": None}], **usage})
        async for piece in answers.pieces():
            choice = {**shape.part(piece), "finish_reason": _reason(piece.finish_reason)}
            run = {"tokens": len(piece.tokens)}
            yield _event({**head, "choices": [choice], **usage, "marslm": run})
        if with_usage:
            yield _event({**head, "choices": [], "usage": answers.usage.model_dump()})
    except ApiError as error:
        yield _event(error.body)
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def _reason(reason: FinishReason | None) -> str | None:
    """Return OpenAI's word; an answer that a closing server cut is cut by length to its reader."""
    return "length" if reason == "abort" else reason


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return what `work` returns, or end it as soon as the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else Response(status_code=CLIENT_GONE)
    finally:
        working.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
