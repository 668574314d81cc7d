"""What the client of a server under load reads from its streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from marslm.bench.serve import Streamed, percentile, stream
from marslm.errors import InputError


def ask(answer: Callable[[httpx2.Request], httpx2.Response]) -> Streamed:
    async def run() -> Streamed:
        transport = httpx2.MockTransport(answer)
        async with httpx2.AsyncClient(base_url="http://server", transport=transport) as client:
            return await stream(client, {"messages": []})

    return asyncio.run(run())


def chunks(*events: dict[str, Any]) -> httpx2.Response:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return httpx2.Response(200, text="".join(lines) + "data: [DONE]\n\n")


def delta(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


def test_tokens_are_counted_from_what_the_server_says() -> None:
    found = ask(
        lambda _: chunks(
            {**delta("a"), "marslm": {"tokens": 1}},
            {**delta("bcd"), "marslm": {"tokens": 3}},
            {"choices": [{"delta": {}}], "marslm": {"tokens": 0}},
        )
    )
    assert (found.tokens, found.chunks, len(found.gaps)) == (4, 2, 3)
    assert found.first is not None
    assert len(set(found.gaps)) == 1  # a chunk's time is shared by its tokens


def test_another_server_brings_a_token_a_chunk() -> None:
    found = ask(lambda _: chunks({"choices": [{"delta": {"role": "assistant"}}]}, delta("a")))
    assert (found.tokens, found.chunks, found.gaps) == (1, 1, [])


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx2.Response(400, json={"error": {"message": "the prompt is too long"}}), "too long"),
        (httpx2.Response(502, text="bad gateway"), r"\(502\): bad gateway"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(response: httpx2.Response, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ask(lambda _: response)


def test_percentiles() -> None:
    values = [float(i) for i in range(100)]
    assert [percentile(values, p) for p in (50, 95, 99)] == [50, 95, 99]
    assert percentile([3.0], 99) == 3
    assert percentile([], 50) is None
