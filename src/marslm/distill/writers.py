"""Who writes the text: our own engine, or a server that speaks OpenAI's protocol.

Knows nothing about files, filters or what the text is for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

import httpx2
from transformers import PreTrainedTokenizerBase

from marslm.data.dialogues import Message
from marslm.data.encode import encode_prompt
from marslm.data.template import turn_of
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

Prompt: TypeAlias = "Sequence[Message] | Sequence[int]"
"""Messages to answer, or token ids to continue."""

_BUSY = (429, 503)
_PAUSES = (1, 2, 4, 8, 16, 32)
"""Seconds to wait before asking a busy server again."""

TokensHeard: TypeAlias = Callable[[int], None]
"""Told how many tokens were just written."""


@dataclass(frozen=True)
class Request:
    """A text to be written. key: any name for it. seed: decides the draws at a temperature."""

    key: str
    prompt: Prompt
    seed: int = 0


@dataclass(frozen=True)
class Written:
    """A finished text. tokens: its length, end token included. cut: it hit the length limit.

    ids: its token ids, where the writer knows them.
    """

    text: str
    tokens: int
    cut: bool
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Sampling:
    """How texts are drawn; temperature 0 is greedy."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0


class Writer(Protocol):
    """Writes many texts at once and yields them as they finish, in any order."""

    def write(
        self, requests: Sequence[Request], sampling: Sampling, heard: TokensHeard
    ) -> Iterator[tuple[Request, Written]]:
        """Yield each request with its text."""


class EngineWriter:
    """Our engine, one token at a time: exact, and in a full batch no slower than other ways."""

    def __init__(self, model: MarsModel, *, slots: int, max_length: int) -> None:
        """`max_length`: tokens of prompt and text together."""
        self._model = model
        self._slots = slots
        self._max_length = max_length

    def write(
        self, requests: Sequence[Request], sampling: Sampling, heard: TokensHeard
    ) -> Iterator[tuple[Request, Written]]:
        """Yield each request with its text; InputError for a prompt without room."""
        if not requests:
            return
        slots = min(self._slots, len(requests))
        engine = Engine(self._model, slots=slots, max_length=self._max_length)
        waiting = {}
        for request in requests:
            ids = prompt_ids(self._model.tokenizer, request.prompt)
            params = SamplingParams(strategy="ar", seed=request.seed, **asdict(sampling))
            waiting[engine.add(ids, params).number] = request
        for event in engine.run():
            heard(len(event.tokens))
            transcript = event.sequence.transcript
            if event.sequence.finished:
                ids = transcript.ids
                cut = transcript.finish_reason == "length"
                written = Written(transcript.text, len(ids), cut, tuple(ids))
                yield waiting.pop(event.sequence.number), written


class EndpointWriter:
    """A server with `/chat/completions` and, for ids to continue, `/completions`.

    The key in the environment variable OPENAI_API_KEY is sent if there is one.
    """

    def __init__(self, url: str, model: str, *, concurrency: int, timeout: float = 600.0) -> None:
        """`url`: the base, such as http://localhost:8000/v1. Raises InputError if none answers."""
        self._concurrency = concurrency
        key = os.environ.get("OPENAI_API_KEY")
        self._client = httpx2.Client(
            base_url=url.rstrip("/") + "/",
            timeout=timeout,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx2.Limits(max_connections=concurrency),
        )
        try:
            self._model = self._served(model)
        except InputError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def write(
        self, requests: Sequence[Request], sampling: Sampling, heard: TokensHeard
    ) -> Iterator[tuple[Request, Written]]:
        """Yield each request with its text; InputError when the server refuses."""
        with ThreadPoolExecutor(self._concurrency) as pool:
            running = {pool.submit(self._ask, request, sampling): request for request in requests}
            try:
                for future in as_completed(running):
                    written = future.result()
                    heard(written.tokens)
                    yield running[future], written
            finally:
                for future in running:
                    future.cancel()

    def _ask(self, request: Request, sampling: Sampling) -> Written:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed,
        }
        messages = [turn_of(part) for part in request.prompt if isinstance(part, Message)]
        path = "chat/completions" if messages else "completions"
        body |= {"messages": messages} if messages else {"prompt": list(request.prompt)}
        answer = self._call("POST", path, json=body)
        choice = answer["choices"][0]
        text = choice["message"]["content"] if messages else choice["text"]
        cut = choice["finish_reason"] == "length"
        return Written(text or "", answer["usage"]["completion_tokens"], cut)

    def _served(self, model: str) -> str:
        """Return the server's name for the model: `model` itself, or the only one it has."""
        names = [entry["id"] for entry in self._call("GET", "models")["data"]]
        if model in names:
            return model
        if len(names) != 1:
            raise InputError(
                f"{self._client.base_url} does not serve {model!r}: name one of {', '.join(names)}"
            )
        return str(names[0])

    def _call(self, method: str, path: str, **options: Any) -> Any:
        reply = self._send(method, path, **options)
        for pause in _PAUSES:
            if reply.status_code not in _BUSY:
                break
            time.sleep(pause)
            reply = self._send(method, path, **options)
        if reply.is_error:
            reason = " ".join(reply.text.split())[:200]
            raise InputError(
                f"{self._client.base_url}{path} refuses with {reply.status_code} ({reason})"
            )
        return reply.json()

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            return self._client.request(method, path, **options)
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise InputError(
                f"{self._client.base_url} does not answer ({reason}): start the server or mend "
                "--endpoint"
            ) from error


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Return a prompt as token ids."""
    messages = [part for part in prompt if isinstance(part, Message)]
    return (
        encode_prompt(tokenizer, messages)
        if messages
        else [i for i in prompt if isinstance(i, int)]
    )
