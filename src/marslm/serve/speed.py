"""GET and PUT /v1/speed, and the task that turns the knob under load.

Knows nothing about requests, which hear the knob at every step.
"""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter

from marslm.serve import errors
from marslm.serve.policy import LoadPolicy, Target, tau_dial
from marslm.serve.schemas import Speed, SpeedChange
from marslm.serve.service import Service

logger = logging.getLogger("marslm.serve.speed")

INTERVAL = 0.5
"""Seconds between two looks at the load."""


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()

    def current() -> Speed:
        target = service.config.target
        knob = service.knob
        return Speed(
            strategy=knob.strategy, tau=knob.tau, policy=None if target is None else str(target)
        )

    @routes.get("/v1/speed", responses=errors.describe(401))
    async def show_speed() -> Speed:
        """Show what requests that set nothing follow now."""
        return current()

    @routes.put("/v1/speed", responses=errors.describe(400, 401))
    async def set_speed(body: SpeedChange) -> Speed:
        """Turn the knob; running answers follow at their next step."""
        if body.strategy is not None:
            service.knob.strategy = body.strategy
        if body.tau is not None:
            service.knob.tau = body.tau
        service.metrics.moved("request")
        logger.info("speed set", extra=body.model_dump(exclude_none=True))
        return current()

    return routes


async def follow_load(service: Service, target: Target) -> None:
    """Look at the load for ever and move the knob when the policy says so."""
    lowest, highest = service.config.tau_range
    dial = tau_dial(service.knob, lowest, highest)
    policy = LoadPolicy(target.limit, len(dial.values))
    dial.set(dial.values[0])
    while True:
        await asyncio.sleep(INTERVAL)
        measured = _measure(service, target)
        if policy.observe(measured):
            value = dial.values[policy.level]
            dial.set(value)
            service.metrics.moved("policy")
            logger.info(
                "speed moved by load",
                extra={dial.name: value, target.measure: measured, "target": str(target)},
            )


def _measure(service: Service, target: Target) -> float | None:
    if target.measure == "tpot":
        return service.pace.take()
    return float(max(0, service.engine.open_requests - service.engine.engine.running))
