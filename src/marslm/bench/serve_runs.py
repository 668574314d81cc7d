"""One run of `bench serve`: a strategy at a load, fixed by its requests or left to the knob.

Knows nothing about how requests are sent, nor about tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marslm.bench.serve import Load, measure
from marslm.bench.server import ServerProcess
from marslm.report import Row


@dataclass(frozen=True)
class Questions:
    """Chats that are asked in turn, greedily. follows_knob: strategy and tau are left to it."""

    chats: Sequence[list[dict[str, Any]]]
    max_new_tokens: int
    follows_knob: bool


def run(
    server: ServerProcess,
    questions: Questions,
    strategy: str,
    tau: float | None,
    load: Load,
    seed: int,
    done: Callable[[int], None],
) -> Row:
    """Return the figures of one run; where the knob was followed, also where it stands then."""
    decoding = {"strategy": strategy, "tau": tau}
    extra = {} if questions.follows_knob else {"marslm": decoding}
    bodies = [
        {
            "model": server.model,
            "messages": chat,
            "max_tokens": questions.max_new_tokens,
            "temperature": 0,
            **extra,
        }
        for chat in questions.chats
    ]
    if questions.follows_knob and server.speed()["strategy"] != strategy:
        server.turn(strategy)
    moves = server.metric("speed_moves_total")
    row = {**decoding, **asyncio.run(measure(server.url, bodies, load, seed, done))}
    if questions.follows_knob:
        speed = server.speed()
        moved = int(server.metric("speed_moves_total") - moves)
        row |= {"tau": speed["tau"], "block": speed["block"], "moves": moved}
    return row
