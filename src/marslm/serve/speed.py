"""GET and PUT /v1/speed, and the task that turns the knob under load.

Knows nothing about requests, which hear the knob at every step.
"""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter

from marslm.engine.admission import trained_block
from marslm.errors import InputError
from marslm.serve import errors
from marslm.serve.policy import Dial, LoadPolicy, Target, block_dial, tau_dial
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
            strategy=knob.strategy,
            tau=knob.tau,
            block=service.engine.engine.largest_block,
            policy=None if target is None else str(target),
        )

    @routes.get("/v1/speed", responses=errors.describe(401))
    async def show_speed() -> Speed:
        """Show what requests that set nothing follow now."""
        return current()

    @routes.put("/v1/speed", responses=errors.describe(400, 401))
    async def set_speed(body: SpeedChange) -> Speed:
        """Turn the knob; running answers follow at their next step."""
        largest = trained_block(service.engine.engine.model)
        if body.block is not None and body.block > largest:
            raise InputError(
                f"block {body.block} is beyond the trained one: give at most {largest}"
            )
        if body.strategy is not None:
            service.knob.strategy = body.strategy
        if body.tau is not None:
            service.knob.tau = body.tau
        if body.block is not None:
            service.knob.block = body.block
        if service.link is not None:
            await service.link.publish(service.knob)
        service.metrics.moved("request")
        logger.info("speed set", extra=body.model_dump(exclude_none=True))
        return current()

    return routes


async def follow_load(service: Service, target: Target) -> None:
    """Look at the load for ever and move the knob when the policy says so.

    What is moved is tau while the knob's strategy is mars, and the window's B while it is one of
    the exact ones that read masks. Turning the strategy puts the other one back. A tau that anyone
    else sets is the operator's own from then on, and load moves it from there.
    """
    engine, knob = service.engine.engine, service.knob
    by_tau = tau_dial(knob, *service.config.tau_range)
    by_block = block_dial(knob, trained_block(engine.model))
    dial: Dial | None = None
    while True:
        wanted = by_block if knob.strategy.startswith("lossless") else by_tau
        if dial is not wanted:
            for each in (by_tau, by_block):
                each.set(each.values[0])
            dial, policy = wanted, LoadPolicy(target.limit, len(wanted.values))
        tau = knob.tau
        await asyncio.sleep(INTERVAL)
        if knob.tau != tau:
            moved, by_tau = by_tau, tau_dial(knob, *service.config.tau_range)
            by_tau.set(by_tau.values[0])
            if dial is moved:
                dial, policy = by_tau, LoadPolicy(target.limit, len(by_tau.values))
            continue
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
