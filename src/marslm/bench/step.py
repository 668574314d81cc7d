"""Where the time of one step goes: propose, lay out, forward, accept, and the engine's bookkeeping.

The engine is run as it is; its parts are wrapped by clocks. Knows nothing about files or tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from marslm.engine.api import room_for
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.report import Row
from marslm.runtime.params import SamplingParams

P = ParamSpec("P")
R = TypeVar("R")

PARTS = ("propose", "lay_out", "forward", "accept", "bookkeeping")


class _Clocks:
    """Seconds of the running step by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, part: str, call: Callable[P, R]) -> Callable[P, R]:
        """Return `call`, its time added to `part`."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[part] = self.seconds.get(part, 0.0) + spent

        return timed


def profile(
    model: MarsModel, prompts: Sequence[list[int]], params: SamplingParams, *, batch: int
) -> Row:
    """Return the median seconds and shares of a decoding step of `batch` requests, by part.

    prompts: at least one, used in turn. Steps that read prompts are left out, and those after a
    request has ended.

    Raises InputError for answers of one token: the step that reads a prompt writes it.
    """
    if params.max_new_tokens < 2:
        raise InputError(f"max_new_tokens is {params.max_new_tokens}: give at least 2")
    longest = max(map(len, prompts))
    engine = Engine(model, slots=batch, max_length=room_for(model, longest, params))
    requests = [engine.add(prompts[i % len(prompts)], params) for i in range(batch)]
    clocks = _wrap(engine, params.strategy or engine.speed.strategy)
    steps: list[dict[str, float]] = []
    while engine.running == batch or not steps:
        reading = any(not request.runs for request in requests)
        clocks.seconds = {}
        start = time.perf_counter()
        engine.step()
        total = time.perf_counter() - start
        if not reading:
            steps.append(_parts(clocks.seconds, total))
    return _row(steps, params.strategy, model.quantize, batch)


def _wrap(engine: Engine, strategy_name: str) -> _Clocks:
    """Put clocks around the parts of an engine's step."""
    clocks, runner = _Clocks(), engine.runner
    strategy = engine.strategy(strategy_name)
    strategy.propose = clocks.wrap("propose", strategy.propose)  # type: ignore[method-assign]
    strategy.accept = clocks.wrap("accept", strategy.accept)  # type: ignore[method-assign]
    decoder = runner.decoder
    decoder.hidden = clocks.wrap("forward", decoder.hidden)  # type: ignore[method-assign]
    decoder.logits = clocks.wrap("forward", decoder.logits)  # type: ignore[method-assign]
    if (compiled := runner.compiled) is not None:
        compiled.run_layers = clocks.wrap(  # type: ignore[method-assign]
            "forward", compiled.run_layers
        )
    together = runner.forward_with_hidden
    runner.forward_with_hidden = clocks.wrap("runner", together)  # type: ignore[method-assign]
    return clocks


def _parts(seconds: dict[str, float], total: float) -> dict[str, float]:
    runner, forward = seconds["runner"], seconds["forward"]
    propose, accept = seconds.get("propose", 0.0), seconds.get("accept", 0.0)
    bookkeeping = total - runner - propose - accept
    return dict(zip(PARTS, (propose, runner - forward, forward, accept, bookkeeping), strict=True))


def _row(steps: Sequence[dict[str, float]], strategy: str | None, quantize: str, batch: int) -> Row:
    medians = {part: statistics.median(step[part] for step in steps) for part in PARTS}
    total = sum(medians.values())
    return {
        "strategy": strategy,
        "quantize": quantize,
        "batch": batch,
        "steps": len(steps),
        "seconds": total,
        **medians,
        **{f"{part}_share": seconds / total for part, seconds in medians.items()},
    }
