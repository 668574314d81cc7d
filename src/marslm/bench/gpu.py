"""The engine on a GPU, within a few minutes: is it right, and how near is it to what can be.

Models have the shapes of Qwen2.5 and random weights, and acceptance is set by a coin, so that
nothing has to be there but the machine. What there is no time for is skipped, and reported as such.
Runs on any device, so that its tests need no GPU. Knows nothing about files or tables.
"""

from __future__ import annotations

import copy
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from marslm.bench import controlled, roofline
from marslm.bench.agreement import equal_choices
from marslm.bench.identity import Referee
from marslm.bench.random_model import random_model
from marslm.bench.transformers_baseline import generate_batch
from marslm.engine.api import room_for, run_all
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.report import Row
from marslm.runtime.params import SamplingParams

_STRATEGIES = {"ar": "ar", "mars": controlled.MARS, "lossless": controlled.LOSSLESS}
"""Name in the report -> what runs."""

_MARGIN = 1.5
"""A measurement is begun if this many times the longest one so far is left."""

_WARM_UP, _TIMED = 3, 24
"""Steps of transformers' loop."""

_CHECKED_PROMPTS, _CHECKED_LENGTH = 4, 32


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    shapes: of models. batches: requests at once. acceptance: the chance of a candidate, if those
    before it were kept. context: tokens of a prompt. new_tokens: of an answer.
    """

    shapes: ListOf[str]
    batches: ListOf[int]
    acceptance: float = 0.5
    context: int = 256
    new_tokens: int = 96


@dataclass(frozen=True)
class _Step:
    """A decoding step of a whole batch. cells: cached tokens that it sees, of all requests."""

    seconds: float
    tokens: int
    rows: int
    cells: int


class _Clock:
    """Knows when it is too late to begin another measurement; one is timed as a context."""

    def __init__(self, budget: float) -> None:
        self._end = time.monotonic() + budget
        self._longest = self._start = 0.0

    @property
    def has_time(self) -> bool:
        """Whether a measurement as long as the longest one so far would end well in time."""
        return time.monotonic() + _MARGIN * self._longest < self._end

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._longest = max(self._longest, time.monotonic() - self._start)


class GpuBench:
    """Checks, then measures all sizes until the time is up."""

    def __init__(self, device: torch.device, sizes: Sizes, *, budget: float) -> None:
        """`budget`: seconds for everything."""
        self._device = device
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._sizes = sizes
        self._clock = _Clock(budget)
        self._params = SamplingParams(
            max_new_tokens=sizes.new_tokens, ignore_eos=True, tau=0.7, block=4
        )
        controlled.register(sizes.acceptance)
        self._machine = roofline.measure(device, self._dtype)

    def run(self, listener: Callable[[str], None] = lambda what: None) -> Iterator[Row]:
        """Yield rows as they are known; `listener` hears what is measured."""
        listener("comparing answers")
        with self._clock:
            yield from check(self._sizes.shapes[0], self._device)
        for shape in self._sizes.shapes:
            yield from self._measure(shape, listener)
            gc.collect()  # an engine and its graphs hold a model's memory

    def _measure(self, shape: str, listener: Callable[[str], None]) -> Iterator[Row]:
        if not self._clock.has_time:
            yield from (_skipped(shape, batch) for batch in self._sizes.batches)
            return
        listener(f"{shape}: making the model")
        with self._clock:
            model = random_model(shape, self._device, self._dtype)
        # First of all: our decoder lays the network's weights out anew.
        plain: dict[int, float] = {}
        for batch in self._sizes.batches:
            listener(f"{shape}, batch {batch}: transformers")
            if self._clock.has_time:
                with self._clock:
                    plain[batch] = self._transformers_seconds(model, batch)
        length = room_for(model, self._sizes.context, self._params)
        engine = Engine(model, slots=max(self._sizes.batches), max_length=length)
        for batch in self._sizes.batches:
            listener(f"{shape}, batch {batch}")
            if batch not in plain or not self._clock.has_time:
                yield _skipped(shape, batch)
                continue
            with self._clock:
                yield from self._rows(engine, batch, plain[batch])

    def _transformers_seconds(self, model: MarsModel, batch: int) -> float:
        """Return the median seconds of a step of transformers' `generate`."""
        prompts = self._prompts(model, batch)
        _, seconds = generate_batch(model, prompts, 1 + _WARM_UP + _TIMED)
        return statistics.median(seconds[_WARM_UP:])

    def _rows(self, engine: Engine, batch: int, plain: float) -> Iterator[Row]:
        cells = batch * (self._sizes.context + _WARM_UP + _TIMED // 2)
        steps = {"transformers": [_Step(plain, batch, batch, cells)]}
        for name, strategy in _STRATEGIES.items():
            self._decode(engine, strategy, batch)  # records graphs, learns what steps cost
            steps[name] = self._decode(engine, strategy, batch)
        speeds = {name: _speed(each) for name, each in steps.items()}
        drawn = self._sizes.acceptance
        for name, each in steps.items():
            yield {
                **self._row(engine, each),
                "model": engine.model.name,
                "strategy": name,
                "batch": batch,
                "graphs": name in _STRATEGIES and engine.runner.static is not None,
                "acceptance": drawn if name in ("mars", "lossless") else None,
                "tokens_per_second": speeds[name],
                "speed_over_transformers": speeds[name] / speeds["transformers"],
                "speed_over_ar": speeds[name] / speeds["ar"],
            }

    def _row(self, engine: Engine, steps: ListOf[_Step]) -> Row:
        limit = [
            self._machine.step_seconds(engine.model, rows=step.rows, cells=step.cells)
            for step in steps
        ]
        return {
            "step_seconds": statistics.median(step.seconds for step in steps),
            "tokens_per_step": statistics.mean(step.tokens for step in steps),
            "rows_per_step": statistics.mean(step.rows for step in steps),
            "limit_seconds": statistics.median(limit),
            "fraction_of_roofline": sum(limit) / sum(step.seconds for step in steps),
            "steps": len(steps),
            "bytes_per_second": self._machine.bytes_per_second,
            "operations_per_second": self._machine.operations_per_second,
            "skipped": False,
        }

    def _decode(self, engine: Engine, strategy: str, batch: int) -> list[_Step]:
        """Answer a batch of prompts; return the steps in which all of them decoded."""
        params = replace(self._params, strategy=strategy)
        requests = [engine.add(prompt, params) for prompt in self._prompts(engine.model, batch)]
        steps = []
        while engine.busy:
            whole = all(request.runs and not request.finished for request in requests)
            fed, cells = _sum_of(requests, "decode_rows"), _sum_of(requests, "num_cached")
            start = time.perf_counter()
            events = engine.step()
            spent = time.perf_counter() - start
            if whole and not engine.runner.recorded:
                tokens = sum(len(event.tokens) for event in events)
                rows = _sum_of(requests, "decode_rows") - fed
                steps.append(_Step(spent, tokens, rows, cells))
        return steps

    def _prompts(self, model: MarsModel, batch: int) -> list[list[int]]:
        return random_prompts(model, batch, self._sizes.context)


def random_prompts(model: MarsModel, count: int, length: int) -> list[list[int]]:
    """Return prompts of random tokens, the same for the same arguments."""
    generator, vocabulary = random.Random(0), model.network.config.vocab_size
    return [[generator.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


def check(shape: str, device: torch.device) -> Iterator[Row]:
    """Yield whether drafting changes an answer in float32, and how often bfloat16 changes a token.

    Drafts are four times of five what `ar` wrote, so runs of every length are put to the test.
    """
    model = random_model(shape, device, torch.float32)
    narrow = replace(model, network=_in_bfloat16(model.network))
    params = SamplingParams(strategy="ar", max_new_tokens=48, ignore_eos=True, block=4)
    prompts = random_prompts(model, _CHECKED_PROMPTS, _CHECKED_LENGTH)
    engine = Engine(
        model, slots=_CHECKED_PROMPTS, max_length=room_for(model, _CHECKED_LENGTH, params)
    )
    plain = run_all(engine, prompts, params)
    controlled.register_coach({tuple(answer.prompt_ids): answer.ids for answer in plain})
    drafted = run_all(engine, prompts, replace(params, strategy=controlled.COACHED))
    referee = Referee(engine)
    found = [referee.compare(ours, theirs) for ours, theirs in zip(drafted, plain, strict=True)]
    yield {
        "check": "float32: drafting writes what ar writes",
        "model": shape,
        "identical_to_ar": sum(each.identical for each in found) / len(found),
        "ties": sum(each.tie for each in found),
        "tokens_per_step": statistics.mean(answer.tokens_per_forward for answer in drafted),
        "graphs": engine.runner.static is not None,
    }
    yield {
        "check": "bfloat16: chooses float32's token after the same text",
        "model": shape,
        "agreement": equal_choices(narrow, plain),
    }


def _in_bfloat16(network: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with narrow weights; rotary frequencies stay as they are, as when loading."""
    copied = copy.deepcopy(network)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return copied


def _speed(steps: ListOf[_Step]) -> float:
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)


def _sum_of(requests: ListOf[object], attribute: str) -> int:
    return sum(getattr(request, attribute) for request in requests)


def _skipped(shape: str, batch: int) -> Row:
    return {"model": shape, "batch": batch, "skipped": True}
