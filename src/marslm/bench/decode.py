"""Decoding speed: strategies side by side on the same prompts, interleaved.

On each group of prompts every strategy takes its turn, so a slow minute of the machine falls on all
of them. Times are of decoding alone: the steps that read prompts are not counted. Knows nothing
about files or tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from marslm.bench.identity import Comparison, Referee
from marslm.bench.llama_cpp_baseline import generate_with_llama_cpp, load_llama_cpp
from marslm.bench.transformers_baseline import generate_with_transformers, with_stock_layout
from marslm.engine.api import Answer, answer_of, room_for
from marslm.engine.engine import Engine, block_of
from marslm.models.loading import MarsModel
from marslm.report import Row
from marslm.runtime.costs import StepCosts
from marslm.runtime.params import SamplingParams
from marslm.strategies.base import DraftSide

TRANSFORMERS = "transformers"
"""Name of an outside baseline: the same network under transformers' own `generate`."""

LLAMA_CPP = "llama-cpp"
"""Name of an outside baseline: the same GGUF file under llama.cpp."""

BASELINES = (TRANSFORMERS, LLAMA_CPP)

Outside: TypeAlias = Callable[
    [list[list[int]], SamplingParams], tuple[list[Answer], list[tuple[float, int]]]
]
"""Answers prompts; returns the answers and (seconds, tokens) of each decoding forward."""


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt. kind: its group in the report."""

    ids: list[int]
    kind: str


@dataclass(frozen=True)
class Step:
    """One decoding forward. kind: the kind of all its prompts, None if they differ."""

    kind: str | None
    seconds: float
    tokens: int


@dataclass(frozen=True)
class Judged:
    """One answer and how it compares with one-token decoding's.

    mask_tokens: how many of its tokens were read from masks; mask_tokens_equal: how many of those
    one-token decoding would choose after the same text.
    """

    kind: str
    answer: Answer
    comparison: Comparison
    mask_tokens_equal: int
    mask_tokens: int


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
        draft: DraftSide | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        """`batch`: prompts decoded together. `longest_prompt`: in tokens. `draft`: second model.

        costs: by which `lossless` chooses its windows; by default as measured here.
        """
        self._model = model
        self._params = params
        self._block = block_of(model, params)
        self._batch = batch
        self._strategies = list(strategies)
        self._judged: dict[str, list[Judged]] = {name: [] for name in strategies}
        self._steps: dict[str, list[Step]] = {name: [] for name in strategies}
        length = room_for(model, longest_prompt, params)
        self._outside = {
            name: _outside(name, model, length) for name in strategies if name in BASELINES
        }
        self._engine = Engine(
            model,
            slots=batch,
            max_length=length,
            costs=costs,
            draft=draft,
        )
        self._referee = Referee(self._engine)

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
        kinds = {prompt.kind for prompt in group}
        kind = kinds.pop() if len(kinds) == 1 else None
        shift = turn % len(self._strategies)
        found = {}
        for name in self._strategies[shift:] + self._strategies[:shift]:
            found[name], steps = self._decode(name, ids)
            self._steps[name] += [Step(kind, seconds, tokens) for seconds, tokens in steps]
        plain = found["ar"] if "ar" in found else self._decode("ar", ids)[0]
        for name, answers in found.items():
            for prompt, answer, other in zip(group, answers, plain, strict=True):
                comparison = self._referee.compare(answer, other)
                equal, total = self._referee.mask_agreement(answer, other, self._params)
                self._judged[name].append(Judged(prompt.kind, answer, comparison, equal, total))

    def _decode(
        self, name: str, prompts: list[list[int]]
    ) -> tuple[list[Answer], list[tuple[float, int]]]:
        """Return answers, and (seconds, tokens) of each forward that read no prompt."""
        params = replace(self._params, strategy=name)
        if name in self._outside:
            return self._outside[name](prompts, params)
        requests = [self._engine.add(prompt, params) for prompt in prompts]
        steps = []
        while self._engine.busy:
            reading = any(not request.runs for request in requests)
            start = time.perf_counter()
            events = self._engine.step()
            seconds = time.perf_counter() - start
            if not reading:
                steps.append((seconds, sum(len(event.tokens) for event in events)))
        return [answer_of(request) for request in requests], steps

    def answers(self, name: str) -> list[Answer]:
        """Return a strategy's answers in the prompts' order."""
        return [judged.answer for judged in self._judged[name]]

    def rows(self) -> list[Row]:
        """Return one row per strategy over everything, then one per strategy and kind."""
        kinds = list(dict.fromkeys(j.kind for judged in self._judged.values() for j in judged))
        overall = [
            self._row(name, self._judged[name], self._steps[name]) for name in self._strategies
        ]
        by_kind = [self._kind_row(name, kind) for kind in kinds for name in self._strategies]
        return [*overall, *(by_kind if len(kinds) > 1 else [])]

    def _kind_row(self, name: str, kind: str) -> Row:
        judged = [judged for judged in self._judged[name] if judged.kind == kind]
        steps = [step for step in self._steps[name] if step.kind == kind]
        return {**self._row(name, judged, steps), "kind": kind}

    def _row(self, name: str, judged: Sequence[Judged], steps: Sequence[Step]) -> Row:
        answers = [each.answer for each in judged]
        tokens, forwards = sum(len(a.ids) for a in answers), sum(len(a.runs) for a in answers)
        seconds = sum(step.seconds for step in steps)
        mask_tokens = sum(each.mask_tokens for each in judged)
        mask_tokens_equal = sum(each.mask_tokens_equal for each in judged)
        gaps = [abs(each.comparison.gap or 0) for each in judged if each.comparison.tie]
        one_token = name in ("ar", *BASELINES)
        return {
            "strategy": name,
            "tau": self._params.shown_tau if name == "mars" else None,
            "block": 1 if one_token else self._block,
            "batch": self._batch,
            "temperature": self._params.temperature,
            "prompts": len(judged),
            "tokens": tokens,
            "forwards": forwards,
            "tokens_per_forward": tokens / max(1, forwards),
            "tokens_per_second": sum(step.tokens for step in steps) / seconds if steps else None,
            "seconds_per_forward": statistics.median(s.seconds for s in steps) if steps else None,
            "rows_per_forward": _rows_per_forward(answers),
            "agreement": mask_tokens_equal / mask_tokens if mask_tokens else None,
            "identical_to_ar": sum(each.comparison.identical for each in judged) / len(judged),
            "ties": len(gaps),
            "largest_tie_gap": max(gaps, default=None),
            "largest_gap": max((abs(j.comparison.gap or 0) for j in judged), default=None),
        }


def _outside(name: str, model: MarsModel, length: int) -> Outside:
    """Return a baseline, with a model of its own."""
    if name == TRANSFORMERS:
        return partial(generate_with_transformers, with_stock_layout(model))
    return partial(generate_with_llama_cpp, load_llama_cpp(model, length), model)


def _rows_per_forward(answers: Sequence[Answer]) -> float | None:
    """Return the mean input rows of a decoding forward of one request, the prompt's left out."""
    forwards = sum(len(answer.runs) - 1 for answer in answers)
    rows = sum(answer.decode_rows for answer in answers)
    return rows / forwards if forwards else None
