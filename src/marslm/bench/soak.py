"""A long mixed load on a server, and what must hold all the while.

Clients leave, bodies are malformed, the knob turns; every answer of an exact strategy must still be
the one an engine gives offline, no slot may leak, and memory may not grow. Knows HTTP, and the
model only to answer the same prompts beforehand.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from marslm.bench.server import ServerProcess
from marslm.data.dialogues import Message
from marslm.data.template import turn_of
from marslm.engine.api import encode, room_for, run_all
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.report import Row
from marslm.runtime.params import SamplingParams

LEAVE = 0.10
"""Share of clients that leave in the middle."""

MALFORMED = 0.05
"""Share of bodies that no server can answer."""

_TURN = 0.05
"""Share of requests beside which somebody turns the knob."""

_BROKEN: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"model": 5}',
    b'{"messages": []}',
    b'{"model": "MODEL", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"model": "MODEL", "messages": [{"role": "user", "content": "x"}], "marslm": {"tau": 9}}',
)


@dataclass(frozen=True)
class Case:
    """A request whose answer is known, as fields of an OpenAI body."""

    fields: dict[str, Any]
    text: str
    tokens: int


@dataclass
class Tally:
    """What happened: counts by kind, and what should not have."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def known_cases(model: MarsModel, prompts: Sequence[str], tokens: int, seed: int) -> list[Case]:
    """Answer the prompts offline, one token a step, each with settings drawn from `seed`."""
    generator = random.Random(seed)
    cases = []
    for prompt in prompts:
        temperature = generator.choice([0.0, 0.0, 0.8])
        params = SamplingParams(
            max_new_tokens=generator.randint(tokens // 4, tokens),
            temperature=temperature,
            seed=generator.randrange(1000),
            stop=tuple(generator.sample(["e", " t", "1", "\n", "="], generator.randint(0, 1))),
            strategy="ar",
        )
        ids = encode(model, prompt)
        engine = Engine(model, slots=1, max_length=room_for(model, len(ids), params))
        answer = run_all(engine, [ids], params)[0]
        fields = {
            "messages": [turn_of(Message("user", prompt))],
            "max_tokens": params.max_new_tokens,
            "temperature": temperature,
            "seed": params.seed,
            "stop": list(params.stop),
        }
        cases.append(Case(fields, answer.text, len(answer.ids)))
    return cases


async def soak(
    server: ServerProcess,
    cases: Sequence[Case],
    *,
    requests: int,
    seconds: float,
    seed: int = 0,
    done: Callable[[int], None] = lambda count: None,
) -> Row:
    """Spread `requests` over `seconds` and return what came of them; `faults` should be empty."""
    generator, tally, finished = random.Random(seed), Tally(), 0
    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client:
        visitor = _Visitor(client, server.model, tally)

        async def one(visit: Coroutine[Any, Any, None]) -> None:
            nonlocal finished
            try:
                await visit
            except Exception as error:
                tally.faults.append(f"{type(error).__name__}: {error}")
            finished += 1
            done(finished)

        start = time.perf_counter()
        tasks = []
        for index in range(requests):
            tasks.append(asyncio.create_task(one(visitor.visit(generator, cases))))
            if index % max(1, requests // 200) == 0:
                tally.memory.append(server.resident_mib)
            due = start + seconds * (index + generator.expovariate(1)) / requests
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await asyncio.gather(*tasks)
        duration = time.perf_counter() - start
    await _settle(server, tally)
    return _row(tally, requests, duration)


class _Visitor:
    """The clients: each looks at the answer it should get."""

    def __init__(self, client: httpx2.AsyncClient, model: str, tally: Tally) -> None:
        self._client = client
        self._model = model
        self._tally = tally

    async def visit(self, generator: random.Random, cases: Sequence[Case]) -> None:
        """Do one of the things that clients do."""
        if generator.random() < _TURN:
            change = {
                "strategy": generator.choice(["lossless", "ar"]),
                "tau": generator.uniform(0.3, 1),
            }
            await self._client.put("/v1/speed", json=change)
            self._tally.counts["turned"] += 1
        kind, case = generator.random(), generator.choice(cases)
        if kind < MALFORMED:
            await self._malformed(generator.choice(_BROKEN))
        elif kind < MALFORMED + LEAVE:
            await self._leave(case, generator.randint(1, 12))
        elif kind < MALFORMED + LEAVE + 0.1:
            await self._unverified(case, generator.uniform(0.3, 1))
        else:
            strategy = generator.choice([None, None, "lossless", "ar"])
            await self._exact(case, strategy, stream=generator.random() < 0.6)

    async def _exact(self, case: Case, strategy: str | None, *, stream: bool) -> None:
        """Want exactly the offline answer, and its count of tokens."""
        body = {**case.fields, "stream": stream, "marslm": {"strategy": strategy}}
        text, tokens = await (self._streamed(body) if stream else self._whole(body))
        if text == case.text and tokens == case.tokens:
            self._tally.counts["exact"] += 1
        else:
            self._tally.faults.append(
                f"wanted {case.tokens} tokens {case.text!r}, got {tokens} {text!r}"
            )

    async def _unverified(self, case: Case, tau: float) -> None:
        """Decode with a threshold, whose answer may differ, beside the others."""
        body = {**case.fields, "stream": False, "marslm": {"strategy": "mars", "tau": tau}}
        await self._whole(body)
        self._tally.counts["mars"] += 1

    async def _whole(self, body: dict[str, Any]) -> tuple[str, int]:
        response = await self._client.post("/v1/chat/completions", json=self._named(body))
        response.raise_for_status()
        answer = response.json()
        return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]

    async def _streamed(self, body: dict[str, Any], leave_after: int = -1) -> tuple[str, int]:
        text, tokens = "", 0
        path = "/v1/chat/completions"
        async with self._client.stream("POST", path, json=self._named(body)) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if leave_after == 0:
                    break
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    text += event["choices"][0]["delta"]["content"]
                    tokens += event.get("marslm", {"tokens": 0})["tokens"]
                    leave_after -= 1
        return text, tokens

    async def _leave(self, case: Case, pieces: int) -> None:
        await self._streamed({**case.fields, "stream": True}, pieces)
        self._tally.counts["left"] += 1

    async def _malformed(self, body: bytes) -> None:
        """Want a refusal that blames the client."""
        content = body.replace(b"MODEL", self._model.encode())
        response = await self._client.post(
            "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
        )
        if not 400 <= response.status_code < 500 or "message" not in response.json()["error"]:
            self._tally.faults.append(f"{body!r} was answered {response.status_code}")
        self._tally.counts["malformed"] += 1

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": self._model, **body}


async def _settle(server: ServerProcess, tally: Tally) -> None:
    """See that nothing runs any more: a slot that is still held has leaked."""
    for _ in range(100):
        held = server.metric("num_requests_running") + server.metric("num_requests_waiting")
        if held == 0:
            return
        await asyncio.sleep(0.1)
    tally.faults.append(f"{held:g} requests hold a slot or wait though no client is left")


def _row(tally: Tally, requests: int, seconds: float) -> Row:
    """Return the outcome; memory is compared between the second and the last quarter."""
    quarter = max(1, len(tally.memory) // 4)
    early = statistics.median(tally.memory[quarter : 2 * quarter] or tally.memory)
    late = statistics.median(tally.memory[-quarter:])
    return {
        "requests": requests,
        "minutes": seconds / 60,
        **{kind: tally.counts[kind] for kind in ("exact", "mars", "left", "malformed", "turned")},
        "faults": len(tally.faults),
        "first_fault": tally.faults[0] if tally.faults else None,
        "memory_mib_early": early,
        "memory_mib_late": late,
    }
