"""POST /v1/chat/completions.

Knows nothing about streaming, which `respond` does.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from marslm.engine.async_engine import Piece
from marslm.serve import errors
from marslm.serve.answers import Answers
from marslm.serve.logprobs import Speller, chat_logprobs
from marslm.serve.respond import respond
from marslm.serve.sampling import sampling_params
from marslm.serve.schemas import ChatRequest
from marslm.serve.service import Service


class ChatShape:
    """A chat's choices: messages, or deltas of them."""

    prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, speller: Speller | None) -> None:
        """`speller`: of tokens, if log-probabilities are wanted."""
        self._speller = speller

    def _logprobs(self, *pieces: Piece) -> dict[str, Any] | None:
        if self._speller is None:
            return None
        return chat_logprobs([each for piece in pieces for each in piece.logprobs], self._speller)

    def openings(self, answers: int) -> list[dict[str, Any]]:
        """Name the role of each answer."""
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None} for index in range(answers)]

    def part(self, piece: Piece) -> dict[str, Any]:
        """Return a delta."""
        return {
            "index": piece.index,
            "delta": {"content": piece.text},
            "logprobs": self._logprobs(piece),
        }

    def whole(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """Return a message."""
        text = "".join(piece.text for piece in pieces)
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(*pieces)}


def router(service: Service) -> APIRouter:
    """Return the route."""
    routes = APIRouter()

    @routes.post(
        "/v1/chat/completions", responses=errors.describe(400, 401, 404, 413, 429, 500, 504)
    )
    async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
        """Answer a chat."""
        service.check_model(body.model)
        params = sampling_params(body)
        prompt = await service.encoder.chat(body.messages)
        answers = await Answers.ask(service, [(prompt, each) for each in params], len(prompt))
        return await respond(request, body, ChatShape(service.encoder.speller(params[0])), answers)

    return routes
