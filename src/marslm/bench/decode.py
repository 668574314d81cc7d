"""Decoding speed: strategies side by side on the same prompts, interleaved.

On each group of prompts every strategy takes its turn, so a slow minute of the machine falls on all
of them. Times are of decoding alone: the steps that read prompts are not counted. Knows nothing
about files or tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from marslm.bench.identity import Comparison, Referee
from marslm.bench.transformers_baseline import generate_with_transformers
from marslm.engine.api import Answer, answer_of, room_for
from marslm.engine.engine import Engine, trained_block
from marslm.models.loading import MarsModel
from marslm.report import Row
from marslm.runtime.params import SamplingParams

TRANSFORMERS = "transformers"
"""Name of the outside baseline: the same network under transformers' own `generate`."""


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt. kind: its group in the report."""

    ids: list[int]
    kind: str


@dataclass(frozen=True)
class Run:
    """One strategy's answers to one group of prompts.

    steps: (seconds, tokens) of each decoding forward, prompts' forwards left out.
    """

    answers: list[Answer]
    steps: list[tuple[float, int]]


@dataclass
class Tally:
    """Everything measured of one strategy over some prompts."""

    runs: list[Run] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    mask_tokens_equal: int = 0
    mask_tokens: int = 0


class DecodeBench:
    """Runs strategies over prompts; `rows` reports."""

    def __init__(
        self,
        model: MarsModel,
        strategies: Sequence[str],
        params: SamplingParams,
        *,
        batch: int = 1,
        longest_prompt: int,
    ) -> None:
        """`batch`: prompts decoded together. `longest_prompt`: in tokens."""
        self._model = model
        self._params = params
        self._block = params.block or trained_block(model)
        self._batch = batch
        self._strategies = list(strategies)
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._engine = Engine(
            model, slots=batch, max_length=room_for(model, longest_prompt, params)
        )
        self._referee = Referee(self._engine.runner)

    def run(
        self, prompts: Sequence[EncodedPrompt], on_group: Callable[[int], None] = lambda done: None
    ) -> None:
        """Measure all prompts; `on_group` hears how many are done."""
        for name in self._strategies:  # warm-up
            self._decode(name, [prompts[0].ids])
        for start in range(0, len(prompts), self._batch):
            group = prompts[start : start + self._batch]
            self._measure(group, start // self._batch)
            on_group(start + len(group))

    def _measure(self, group: Sequence[EncodedPrompt], turn: int) -> None:
        ids = [prompt.ids for prompt in group]
        shift = turn % len(self._strategies)
        order = self._strategies[shift:] + self._strategies[:shift]
        runs = {name: self._decode(name, ids) for name in order}
        plain = runs["ar"] if "ar" in runs else self._decode("ar", ids)
        for name, run in runs.items():
            for index, prompt in enumerate(group):
                answer = run.answers[index]
                tally = self._tallies.setdefault((name, prompt.kind), Tally())
                tally.comparisons.append(self._referee.compare(answer, plain.answers[index]))
                equal, total = self._referee.mask_agreement(answer, self._params)
                tally.mask_tokens_equal += equal
                tally.mask_tokens += total
            # A group's steps serve all its prompts; they are booked under its first one's kind.
            self._tallies[name, group[0].kind].runs.append(run)

    def _decode(self, name: str, prompts: list[list[int]]) -> Run:
        params = replace(self._params, strategy=name)
        if name == TRANSFORMERS:
            return Run(*generate_with_transformers(self._model, prompts, params))
        requests = [self._engine.add(prompt, params) for prompt in prompts]
        steps = []
        while self._engine.busy:
            reading = any(not request.runs for request in requests)
            start = time.perf_counter()
            events = self._engine.step()
            seconds = time.perf_counter() - start
            if not reading:
                steps.append((seconds, sum(len(event.tokens) for event in events)))
        return Run([answer_of(request) for request in requests], steps)

    def answers(self, name: str) -> list[Answer]:
        """Return a strategy's answers; with prompts of one kind, in the prompts' order."""
        tallies = [tally for (strategy, _), tally in self._tallies.items() if strategy == name]
        return [a for tally in tallies for run in tally.runs for a in run.answers]

    def rows(self) -> list[Row]:
        """Return one row per strategy over everything, then one per strategy and kind."""
        kinds = list(dict.fromkeys(kind for _, kind in self._tallies))
        overall = [self._row(name, kinds) for name in self._strategies]
        by_kind = [
            {**self._row(name, [kind]), "kind": kind}
            for kind in kinds
            for name in self._strategies
            if (name, kind) in self._tallies
        ]
        return [*overall, *(by_kind if len(kinds) > 1 else [])]

    def _row(self, name: str, kinds: Sequence[str]) -> dict[str, str | int | float | bool | None]:
        tallies = [self._tallies[name, kind] for kind in kinds if (name, kind) in self._tallies]
        runs = [run for tally in tallies for run in tally.runs]
        answers = [answer for run in runs for answer in run.answers]
        steps = [step for run in runs for step in run.steps]
        comparisons = [comparison for tally in tallies for comparison in tally.comparisons]
        mask_tokens = sum(tally.mask_tokens for tally in tallies)
        tokens, forwards = sum(len(a.ids) for a in answers), sum(len(a.runs) for a in answers)
        seconds = sum(seconds for seconds, _ in steps)
        gaps = [c.gap for c in comparisons if c.tie and c.gap is not None]
        return {
            "strategy": name,
            "tau": self._params.tau if name == "mars" else None,
            "block": 1 if name in ("ar", TRANSFORMERS) else self._block,
            "batch": self._batch,
            "temperature": self._params.temperature,
            "prompts": len(comparisons),
            "tokens": tokens,
            "forwards": forwards,
            "tokens_per_forward": tokens / max(1, forwards),
            "tokens_per_second": sum(count for _, count in steps) / seconds if steps else None,
            "seconds_per_forward": statistics.median(s for s, _ in steps) if steps else None,
            "rows_per_forward": _rows_per_forward(answers),
            "agreement": sum(t.mask_tokens_equal for t in tallies) / mask_tokens
            if mask_tokens
            else None,
            "identical_to_ar": sum(c.identical for c in comparisons) / max(1, len(comparisons)),
            "ties": len(gaps),
            "largest_tie_gap": max(map(abs, gaps), default=None),
        }


def _rows_per_forward(answers: Sequence[Answer]) -> float | None:
    """Return the mean input rows of a decoding forward of one request, the prompt's left out."""
    forwards = sum(len(answer.runs) - 1 for answer in answers)
    rows = sum(answer.decode_rows for answer in answers)
    return rows / forwards if forwards else None
