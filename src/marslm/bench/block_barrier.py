"""The paper's table 5: a cache that is committed by blocks, no cache, and a cursor per request.

With the paper's block-level cache a batch goes through its answers block by block: inside a block
of `granularity` tokens every step computes the block's tokens anew, and who has filled the block
waits for the others. Without a cache every step computes the whole text. Both run real forwards
here, by the same runner, with the same strategy and so the same acceptance as the engine, which
has a cursor for each request and no barrier. Knows nothing about files or tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace

from torch import Tensor

from marslm.engine.api import room_for
from marslm.engine.engine import Engine, block_of
from marslm.models.loading import MarsModel
from marslm.report import Row
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.logits import Logits
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.work import Work
from marslm.strategies.base import StepSettings

PAPERS_STEP_SECONDS = 0.028
"""A step of the paper's 7B model on an H200: from 143 tokens a second at batch 4."""


@dataclass(frozen=True)
class Drained:
    """What it took to answer a queue. rows: fed in all its steps."""

    steps: int
    seconds: float
    tokens: int
    rows: int


class BatchBench:
    """Drains one queue of prompts in every way."""

    def __init__(
        self, model: MarsModel, prompts: ListOf[list[int]], params: SamplingParams
    ) -> None:
        """`params`: of `mars`, which is compared with `ar`; tau is fixed in them."""
        self._model = model
        self._prompts = list(prompts)
        self._params = params
        self._length = room_for(model, max(map(len, prompts)), params)

    def rows(
        self,
        batches: ListOf[int],
        granularities: ListOf[int],
        listener: Callable[[str], None] = lambda what: None,
    ) -> list[Row]:
        """Return a row for each batch and way; gains are over `ar` at the same batch."""
        found: list[Row] = []
        for batch in batches:
            plain = self.drain(batch, "ar")
            ways: list[tuple[str, int | None, Callable[[], Drained]]] = [
                ("ar", None, lambda plain=plain: plain),  # type: ignore[misc]
                ("ours", None, lambda batch=batch: self.drain(batch)),  # type: ignore[misc]
                ("no cache", None, lambda batch=batch: self.drain_without(batch, None)),  # type: ignore[misc]
            ]
            ways += [
                ("barrier", size, lambda b=batch, g=size: self.drain_without(b, g))  # type: ignore[misc]
                for size in granularities
            ]
            for way, granularity, drain in ways:
                listener(f"batch {batch}: {way} {granularity or ''}")
                found.append(_row(batch, way, granularity, drain(), plain))
        return found

    def drain(self, batch: int, strategy: str | None = None) -> Drained:
        """Answer the queue with the engine, `batch` at a time; nobody waits for anybody."""
        engine = self._engine(batch)
        params = self._params if strategy is None else replace(self._params, strategy=strategy)
        rows = _count_rows(engine)
        requests = [engine.add(prompt, params) for prompt in self._prompts]
        start, steps = time.perf_counter(), 0
        while engine.busy:
            engine.step()
            steps += 1
        seconds = time.perf_counter() - start
        return Drained(steps, seconds, _tokens(requests), sum(rows))

    def drain_without(self, batch: int, granularity: int | None) -> Drained:
        """Answer the queue with the paper's block cache, or with none if `granularity` is None."""
        engine = self._engine(batch)
        rows, requests, steps = _count_rows(engine), [], 0
        start = time.perf_counter()
        for first in range(0, len(self._prompts), batch):
            prompts = self._prompts[first : first + batch]
            group = [engine.new_sequence(prompt, self._params) for prompt in prompts]
            for slot, sequence in enumerate(group):
                sequence.slot = slot
            steps += _Barrier(engine, group, granularity).run()
            requests += group
        return Drained(steps, time.perf_counter() - start, _tokens(requests), sum(rows))

    def _engine(self, batch: int) -> Engine:
        return Engine(self._model, slots=batch, max_length=self._length, costs=AssumedCosts())


class _Barrier:
    """A batch that goes through its answers block by block."""

    def __init__(self, engine: Engine, group: list[Sequence], granularity: int | None) -> None:
        self._engine = engine
        self._group = group
        self._granularity = granularity
        self._blocks = 0
        self._fed = [0] * len(group)

    def run(self) -> int:
        """Answer everybody; return the steps."""
        steps = 0
        while open_ := [each for each in self._group if not each.finished]:
            active = [each for each in open_ if not self._filled(each)]
            if active:
                self._step(active)
                steps += 1
            else:
                self._blocks += 1
        return steps

    def _filled(self, sequence: Sequence) -> bool:
        """Whether a request has written its block, and waits."""
        if self._granularity is None:
            return False
        written = len(sequence.tokens) - sequence.prompt_length
        return written >= (self._blocks + 1) * self._granularity

    def _cached(self, sequence: Sequence) -> int:
        """Return how many tokens the cache holds: those of whole blocks that were fed."""
        if self._granularity is None:
            return 0
        assert sequence.slot is not None
        committed = sequence.prompt_length + self._blocks * self._granularity
        return min(committed, self._fed[sequence.slot])

    def _step(self, active: list[Sequence]) -> None:
        engine = self._engine
        params = active[0].params
        strategy = engine.strategy("mars")
        assert params.tau is not None
        assert not isinstance(params.tau, str)
        settings = StepSettings(block_of(engine.model, params), params.tau)
        windows = strategy.propose(active, [settings] * len(active))
        works = []
        for sequence, window in zip(active, windows, strict=True):
            cached = self._cached(sequence)
            window = window.cut(engine.max_length - len(sequence.tokens))  # noqa: PLW2901
            assert sequence.slot is not None
            pending = sequence.tokens[cached:]
            works.append(Work(sequence.slot, cached, pending, window, 1 + len(window)))
        logits = [found for found, _ in engine.runner.forward_with_hidden(works)]
        for sequence, work, each in zip(active, works, logits, strict=True):
            outcome = strategy.accept(sequence, work.window, Logits(each), settings)
            self._fed[work.slot] = len(sequence.tokens)
            sequence.commit(outcome.new_tokens)


def _count_rows(engine: Engine) -> list[int]:
    """Return a list to which every forward of the engine's runner adds its rows."""
    rows: list[int] = []
    forward = engine.runner.forward_with_hidden

    def counted(works: list[Work]) -> list[tuple[Tensor, Tensor]]:
        rows.append(sum(len(work.tokens) for work in works))
        return forward(works)

    engine.runner.forward_with_hidden = counted  # type: ignore[method-assign]
    return rows


def _tokens(requests: ListOf[Sequence]) -> int:
    return sum(len(request.transcript.ids) for request in requests)


def _row(batch: int, way: str, granularity: int | None, drained: Drained, plain: Drained) -> Row:
    return {
        "batch": batch,
        "way": way,
        "granularity": granularity,
        "steps": drained.steps,
        "seconds": drained.seconds,
        "tokens": drained.tokens,
        "rows": drained.rows,
        "gain_in_steps": plain.steps / drained.steps,
        "gain": plain.seconds / drained.seconds,
        "seconds_at_papers_step": drained.steps * PAPERS_STEP_SECONDS,
    }
