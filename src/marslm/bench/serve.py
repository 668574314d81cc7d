"""Streams from a server under load: Poisson arrivals, at most so many at once.

Knows HTTP alone: any server that streams OpenAI's chunks can be measured, and one that sends no
`marslm` in them counts each chunk as a token.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from marslm.errors import InputError
from marslm.report import Row

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Load:
    """streams: at most so many at once. rate: arrivals a second, on average. requests: of them."""

    streams: int
    rate: float
    requests: int


@dataclass
class Streamed:
    """One answer as its client saw it; times in seconds.

    first: to the first token. gaps: per token after it, the time since the chunk before divided by
    the chunk's tokens.
    """

    first: float | None = None
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    chunks: int = 0


async def measure(
    url: str,
    bodies: Sequence[dict[str, Any]],
    load: Load,
    seed: int = 0,
    done: Callable[[int], None] = lambda count: None,
) -> Row:
    """Send `load.requests` requests, the bodies in turn, and return the figures of the run."""
    arrivals = random.Random(seed)
    room = asyncio.Semaphore(load.streams)
    finished: list[Streamed] = []
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=None, limits=limits) as client:

        async def one(body: dict[str, Any]) -> None:
            async with room:
                finished.append(await stream(client, body))
            done(len(finished))

        start = time.perf_counter()
        tasks = []
        for index in range(load.requests):
            tasks.append(asyncio.create_task(one(bodies[index % len(bodies)])))
            await asyncio.sleep(arrivals.expovariate(load.rate))
        await asyncio.gather(*tasks)
        seconds = time.perf_counter() - start
    return _figures(finished, load, seconds)


async def stream(client: httpx2.AsyncClient, body: dict[str, Any]) -> Streamed:
    """Read one streamed chat to its end; InputError, in the server's words, if it is refused."""
    found, last = Streamed(), time.perf_counter()
    start = last
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as got:
        if got.is_error:
            await got.aread()
            raise InputError(f"the server refused a request ({got.status_code}): {_reason(got)}")
        async for line in got.aiter_lines():
            tokens = _tokens(line)
            if not tokens:
                continue
            now = time.perf_counter()
            if found.first is None:
                found.first = now - start
            else:
                found.gaps += [(now - last) / tokens] * tokens
            last = now
            found.tokens += tokens
            found.chunks += 1
    return found


def _reason(response: httpx2.Response) -> str:
    """Return what an error response says: OpenAI's message if it has one."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text.strip()[:200]


def _tokens(line: str) -> int:
    """Return how many tokens a line of a stream brings."""
    if not line.startswith("data: {"):
        return 0
    event = json.loads(line.removeprefix("data: "))
    if "marslm" in event:
        return int(event["marslm"]["tokens"])
    return int(bool(event["choices"] and event["choices"][0]["delta"].get("content")))


def _figures(finished: list[Streamed], load: Load, seconds: float) -> Row:
    tokens = sum(each.tokens for each in finished)
    firsts = [each.first for each in finished if each.first is not None]
    gaps = [gap for each in finished for gap in each.gaps]
    return {
        "streams": load.streams,
        "requests": len(finished),
        "requests_per_second": len(finished) / seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_forward": tokens / max(1, sum(each.chunks for each in finished)),
        **{f"ttft_p{p}": percentile(firsts, p) for p in _PERCENTILES},
        **{f"inter_token_p{p}": percentile(gaps, p) for p in _PERCENTILES},
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the value that `percent` of the others do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
