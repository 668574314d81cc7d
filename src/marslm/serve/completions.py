"""POST /v1/completions: texts and token ids, without a chat template.

Knows nothing about streaming, which `respond` does.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from fastapi import APIRouter, Request, Response

from marslm.engine.async_engine import Piece
from marslm.serve import errors
from marslm.serve.answers import Answers
from marslm.serve.logprobs import Offsets, Speller, completion_logprobs
from marslm.serve.respond import respond
from marslm.serve.sampling import sampling_params
from marslm.serve.schemas import CompletionRequest
from marslm.serve.service import Service


class CompletionShape:
    """A completion's choices: texts."""

    prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, speller: Speller | None) -> None:
        """`speller`: of tokens, if log-probabilities are wanted."""
        self._speller = speller
        self._offsets: defaultdict[int, Offsets] = defaultdict(Offsets)

    def _logprobs(self, index: int, *pieces: Piece) -> dict[str, Any] | None:
        if self._speller is None:
            return None
        found = [each for piece in pieces for each in piece.logprobs]
        return completion_logprobs(found, self._speller, self._offsets[index])

    def openings(self, answers: int) -> list[dict[str, Any]]:
        """Return nothing: a text begins with its first piece."""
        return []

    def part(self, piece: Piece) -> dict[str, Any]:
        """Return a piece of text."""
        logprobs = self._logprobs(piece.index, piece)
        return {"index": piece.index, "text": piece.text, "logprobs": logprobs}

    def whole(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """Return the text."""
        return {
            "index": index,
            "text": "".join(piece.text for piece in pieces),
            "logprobs": self._logprobs(index, *pieces),
        }


def router(service: Service) -> APIRouter:
    """Return the route."""
    routes = APIRouter()

    @routes.post("/v1/completions", responses=errors.describe(400, 401, 404, 413, 429, 500, 504))
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue texts; the answers to prompt i are choices i * n to i * n + n - 1."""
        service.check_model(body.model)
        params = sampling_params(body)
        prompts = await _prompts(service, body)
        requests = [(prompt, each) for prompt in prompts for each in params]
        answers = await Answers.ask(service, requests, sum(map(len, prompts)))
        return await respond(
            request, body, CompletionShape(service.encoder.speller(params[0])), answers
        )

    return routes


async def _prompts(service: Service, body: CompletionRequest) -> list[list[int]]:
    """Return the prompts as ids: one text, texts, one prompt's ids, or ids of several."""
    if isinstance(body.prompt, str):
        return [await service.encoder.text(body.prompt)]
    if not body.prompt or isinstance(body.prompt[0], int):
        return [service.encoder.ids(cast("list[int]", body.prompt))]
    several = cast("list[str | list[int]]", body.prompt)
    return [
        await service.encoder.text(each) if isinstance(each, str) else service.encoder.ids(each)
        for each in several
    ]
