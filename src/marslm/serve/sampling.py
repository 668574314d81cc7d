"""The one translation from OpenAI's request fields to the engine's `SamplingParams`.

Knows nothing about prompts, streams or HTTP.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

from marslm.errors import InputError
from marslm.runtime.params import SamplingParams
from marslm.serve.errors import ApiError
from marslm.serve.schemas import ChatRequest, CompletionRequest, ResponseFormat

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's length cap of a completion; a chat's answer may fill the context."""

UNLIMITED = 2**31
"""The engine cuts it to the room there is."""

BAN = -100
"""The bias that OpenAI documents as a ban."""


def sampling_params(request: ChatRequest | CompletionRequest) -> list[SamplingParams]:
    """Return the parameters of each of the request's `n` answers.

    Answer i draws with seed + i, so that the first is the one that n = 1 would have given. Raises
    ApiError for what cannot be meant.
    """
    seed = secrets.randbits(32) if request.seed is None else request.seed
    wishes = {name: value for name, value in _wishes(request).items() if value is not None}
    try:
        return [SamplingParams(seed=seed + index, **wishes) for index in range(request.n)]
    except InputError as error:
        raise ApiError(400, str(error)) from error


def _wishes(request: ChatRequest | CompletionRequest) -> dict[str, Any]:
    """Return fields of SamplingParams; None where the engine's own default is right."""
    decoding = request.marslm
    return {
        "max_new_tokens": _length_cap(request),
        "temperature": request.temperature,
        "top_p": _unless(1, request.top_p),
        "top_k": request.top_k,
        "min_p": request.min_p,
        "presence_penalty": _unless(0, request.presence_penalty),
        "frequency_penalty": _unless(0, request.frequency_penalty),
        "repetition_penalty": request.repetition_penalty,
        "logit_bias": _logit_bias(request.logit_bias),
        "logprobs": _logprobs(request),
        "stop": _stop(request.stop),
        "stop_token_ids": None if request.stop_token_ids is None else tuple(request.stop_token_ids),
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "json_schema": _json_schema(request.response_format),
        "strategy": decoding.strategy,
        "tau": tuple(decoding.tau) if isinstance(decoding.tau, list) else decoding.tau,
        "block": decoding.block,
    }


def _length_cap(request: ChatRequest | CompletionRequest) -> int:
    if isinstance(request, ChatRequest):
        return request.max_completion_tokens or request.max_tokens or UNLIMITED
    return request.max_tokens or DEFAULT_COMPLETION_TOKENS


def _unless(neutral: float, value: float) -> float | None:
    return None if value == neutral else value


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    try:
        return {int(token): -math.inf if value == BAN else value for token, value in bias.items()}
    except ValueError as error:
        message = "a key of logit_bias is not a token id: give the ids of this model's tokenizer"
        raise ApiError(400, message, param="logit_bias") from error


def _logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if request.top_logprobs is not None and not request.logprobs:
        message = "top_logprobs needs logprobs: true beside it"
        raise ApiError(400, message, param="top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _json_schema(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None:
        message = "response_format of type json_schema needs json_schema beside it"
        raise ApiError(400, message, param="response_format")
    return dict(wanted.json_schema.schema_)
