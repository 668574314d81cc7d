"""One evaluation: several decoding modes, several benchmarks, the same items for all.

Knows nothing about how progress or results are shown.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.task import ConfigurableTask

from marslm._version import __version__
from marslm.data.dialogues import Message
from marslm.data.encode import render_prompt
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.evaluation.answering import Generation
from marslm.evaluation.benchmarks import Benchmark, Suite
from marslm.evaluation.folder import ResultsFolder
from marslm.evaluation.harness import check_harness
from marslm.evaluation.harness_model import MarsLM
from marslm.evaluation.items import Chosen, Item, choose_items, run_items
from marslm.evaluation.modes import BASE, Mode
from marslm.evaluation.rows import rows_of
from marslm.evaluation.sandbox import check_sandbox
from marslm.evaluation.tasks import build_tasks, check_local_files
from marslm.models.adapter import CONFIG_FILE
from marslm.models.calibration import FILE_NAME as CALIBRATION_FILE
from marslm.models.loading import MarsModel, load, load_tokenizer
from marslm.models.quantize import Quantize
from marslm.models.record import FILE_NAME as RECORD_FILE
from marslm.report import Row, describe_machine
from marslm.runtime.params import SamplingParams

_TRIAL = SamplingParams(max_new_tokens=1)

_PIECE = 1 << 20
"""Bytes of a file that are read at once."""

_VERSIONS = ("lm_eval", "torch", "transformers")


@dataclass(frozen=True)
class Plan:
    """What to evaluate. limit: items of each benchmark, None for all; seed: which ones."""

    model: str
    adapter: str | None
    suite: Suite
    benchmarks: Sequence[Benchmark]
    modes: Sequence[Mode]
    limit: int | None = None
    seed: int = 0
    batch: int = 8
    allow_code: bool = False
    quantize: Quantize = "none"

    def check(self) -> None:
        """Raise InputError for what would fail later."""
        check_harness()
        for name, value in (("limit", self.limit), ("batch", self.batch)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}: give at least 1")
        if any(benchmark.runs_code for benchmark in self.benchmarks):
            if not self.allow_code:
                raise InputError(
                    "humaneval runs programs that the model wrote: add --allow-code, or leave it "
                    "out of --tasks"
                )
            check_sandbox()
        if self.suite.local:
            check_local_files(self.benchmarks, self.suite)
        render_prompt(load_tokenizer(self.model), [Message("user", "Hi")])

    @property
    def identity(self) -> dict[str, Any]:
        """What the answers depend on, but the decoding mode.

        The processor is among it: another one rounds otherwise, and then greedy answers part.
        """
        machine = describe_machine()
        versions = {name: importlib.metadata.version(name) for name in _VERSIONS}
        return {
            "model": self.model,
            "model_sha256": _hash(self.model) if Path(self.model).is_dir() else None,
            "adapter_sha256": _hash(self.adapter),
            "quantize": self.quantize,
            "suite": self.suite.name,
            "max_new_tokens": self.suite.max_new_tokens,
            "seed": self.seed,
            "processor": machine["gpu"] or machine["processor"],
            "versions": {"marslm": __version__, **versions},
        }


def _hash(place: str | None) -> str | None:
    """Return one hash over the files of a model's or adapter's folder that decide what is decoded.

    Its card, logs and measurements may change, and its folder may be moved.
    """
    if place is None:
        return None
    names = (CONFIG_FILE, RECORD_FILE, CALIBRATION_FILE, "*.safetensors")
    digest = hashlib.sha256()
    for path in sorted(path for name in names for path in Path(place).glob(name)):
        digest.update(path.name.encode())
        with path.open("rb") as file:  # in pieces: a model's weights may be larger than the memory
            while piece := file.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()


@dataclass
class Progress:
    """done and total: items of all modes. seconds_left: None while nothing was measured."""

    total: int
    mode: str = ""
    task: str = ""
    done: int = 0
    answered: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the answers that had to be written."""
        if not self.answered:
            return None
        return self.seconds / self.answered * (self.total - self.done)


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class _Prepared:
    """A benchmark's tasks, and the documents that every mode is asked."""

    benchmark: Benchmark
    tasks: Mapping[str, ConfigurableTask]
    chosen: Chosen

    @property
    def size(self) -> int:
        return sum(map(len, self.chosen.values()))


def run(plan: Plan, output: Path, listener: Listener) -> list[Row]:
    """Evaluate into the folder `output`, where a stopped run goes on; return the report's rows."""
    plan.check()
    # They log every task's settings several times, and draw bars.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    models = _load_models(plan)
    folder = ResultsFolder(output)
    folder.begin(plan.identity)
    prepared = [_prepare(benchmark, plan) for benchmark in plan.benchmarks]
    progress = Progress(len(plan.modes) * sum(each.size for each in prepared))
    results: dict[tuple[Mode, str], list[Item]] = {}
    for mode in plan.modes:
        lm = _language_model(models[mode.strategy == BASE], mode, plan, folder, progress, listener)
        for each in prepared:
            progress.mode, progress.task = mode.name, each.benchmark.name
            before = progress.done
            items = run_items(lm, each.benchmark, each.tasks, each.chosen)
            progress.done = before + each.size
            listener(progress)
            folder.write_items(mode.name, each.benchmark.name, items)
            results[mode, each.benchmark.name] = items
    return rows_of(plan.modes, plan.benchmarks, plan.suite, results)


def _load_models(plan: Plan) -> dict[bool, MarsModel]:
    """Return the models that the modes need, by whether it is the base; InputError for a bad mode.

    A mode that this model cannot run is refused now, not when its turn comes.
    """
    models: dict[bool, MarsModel] = {}
    for base in {mode.strategy == BASE for mode in plan.modes}:
        adapter = None if base else plan.adapter
        models[base] = load(plan.model, adapter=adapter, quantize=plan.quantize)
        engine = Engine(models[base], slots=1, max_length=1 + _TRIAL.max_new_tokens, pack=False)
        for mode in plan.modes:
            if base == (mode.strategy == BASE):
                engine.new_sequence([0], replace(_TRIAL, **mode.arguments))
    return models


def _prepare(benchmark: Benchmark, plan: Plan) -> _Prepared:
    tasks = build_tasks(benchmark, plan.suite)
    sizes = {name: len(task.eval_docs) for name, task in tasks.items()}
    return _Prepared(benchmark, tasks, choose_items(sizes, plan.limit, plan.seed))


def _language_model(
    model: MarsModel,
    mode: Mode,
    plan: Plan,
    folder: ResultsFolder,
    progress: Progress,
    listener: Listener,
) -> MarsLM:
    def hear(generation: Generation) -> None:
        progress.done += 1
        progress.answered += 1
        progress.tokens += generation.tokens
        listener(progress)

    return MarsLM(
        model,
        batch_size=plan.batch,
        answers=folder.answers(mode.name),
        on_answer=hear,
        **mode.arguments,
    )
