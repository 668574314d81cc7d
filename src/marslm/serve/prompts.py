"""Prompts as token ids, made beside the event loop.

Long texts take a while to encode, so that happens in one thread of its own, and with a copy of the
tokenizer, since the engine's thread decodes with the original. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from marslm.data.dialogues import Message
from marslm.data.encode import encode_prompt
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.runtime.detokenize import token_bytes
from marslm.runtime.params import SamplingParams
from marslm.serve.errors import ApiError
from marslm.serve.logprobs import Speller
from marslm.serve.schemas import ChatMessage

T = TypeVar("T")


class PromptEncoder:
    """Encodes for one engine and checks the result against its limits."""

    def __init__(self, engine: Engine) -> None:
        """Copy the tokenizer."""
        self._engine = engine
        self._tokenizer = copy.deepcopy(engine.model.tokenizer)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="marslm-encode")

    async def chat(self, messages: list[ChatMessage]) -> list[int]:
        """Return a chat's prompt; ApiError if the chat template or the engine refuses it."""
        turns = [
            # OpenAI's newer name for the same role.
            Message("system" if m.role == "developer" else m.role, m.text)
            for m in messages
        ]
        try:
            ids = await self._run(lambda: encode_prompt(self._tokenizer, turns))
        except InputError as error:
            raise ApiError(400, str(error), param="messages") from error
        return self._checked(ids, "messages")

    async def text(self, text: str) -> list[int]:
        """Return a text's ids, with the special tokens that the tokenizer puts around it."""
        ids: list[int] = await self._run(lambda: self._tokenizer.encode(text))
        return self._checked(ids, "prompt")

    def ids(self, ids: list[int]) -> list[int]:
        """Return ids as they are, checked."""
        return self._checked(ids, "prompt")

    def speller(self, params: SamplingParams) -> Speller | None:
        """Return what spells one token, None unless log-probabilities are wanted."""
        if params.logprobs is None:
            return None
        return Speller(
            lambda token: str(self._tokenizer.decode([token])),
            lambda token: token_bytes(self._tokenizer, token),
        )

    def _checked(self, ids: list[int], param: str) -> list[int]:
        try:
            self._engine.check_prompt(ids)
        except InputError as error:
            too_long = len(ids) >= self._engine.max_length
            code = "context_length_exceeded" if too_long else None
            raise ApiError(400, str(error), param=param, code=code) from error
        return ids

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
