"""Several replicas of the server under Ray Serve, with one knob for all of them.

Each replica has an engine of its own, and Ray routes requests and starts and ends replicas. The
extra `ray` brings what is imported here. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve

from marslm.engine.async_engine import AsyncEngine
from marslm.engine.speed import SpeedKnob
from marslm.serve.app import create_app
from marslm.serve.config import ServeConfig

_NO_TURN = 0


class SpeedBoard:
    """The last turn of the knob; replicas wait here for the next."""

    def __init__(self) -> None:
        """Start without one."""
        self._number = _NO_TURN
        self._speed: dict[str, Any] = {}
        self._turned = asyncio.Condition()

    async def publish(self, speed: dict[str, Any]) -> None:
        """Remember a turn and tell everybody."""
        async with self._turned:
            self._number += 1
            self._speed = speed
            self._turned.notify_all()

    async def after(self, number: int) -> tuple[int, dict[str, Any]]:
        """Return the last turn and its number, once it is beyond `number`."""
        async with self._turned:
            await self._turned.wait_for(lambda: self._number > number)
            return self._number, self._speed


class BoardLink:
    """One replica's link to the board."""

    def __init__(self, board: Any) -> None:
        """`board`: the actor."""
        self._board = board

    async def publish(self, knob: SpeedKnob) -> None:
        """Tell the other replicas."""
        await self._board.publish.remote(asdict(knob))

    async def follow(self, knob: SpeedKnob) -> None:
        """Turn `knob` as the board says, for ever; a new replica starts with the last turn."""
        number = _NO_TURN
        while True:
            number, speed = await self._board.after.remote(number)
            knob.strategy, knob.tau, knob.block = speed["strategy"], speed["tau"], speed["block"]


def application(make_engine: Callable[[], AsyncEngine], config: ServeConfig, **options: Any) -> Any:
    """Return an application for `ray.serve.run`.

    make_engine: called once in each replica. options: of the Ray deployment, such as num_replicas,
    autoscaling_config or ray_actor_options.
    """
    # Detached: it outlives the process that deploys, and a later deployment finds the last turn.
    actor = ray.remote(num_cpus=0)(SpeedBoard)
    board = actor.options(
        name="marslm-speed", namespace="serve", lifetime="detached", get_if_exists=True
    ).remote()

    def build() -> FastAPI:
        return create_app(make_engine(), config, link=BoardLink(board))

    settings = {"name": "marslm", "max_ongoing_requests": 1000, **options}
    return serve.deployment(serve.ingress(build)(), **settings).bind()
