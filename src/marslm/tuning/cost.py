"""What a training objective costs against plain fine-tuning: time per clean token, peak memory.

Same model, data, batch and hardware. Times: an objective and the baseline take steps in turn, so a
slow minute of the machine falls on both. Memory: a fresh process for each objective, which takes a
few steps and reports its peak. Knows nothing about tables.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from marslm.core.losses import LossCounts
from marslm.data import arithmetic
from marslm.data.encode import Example, encode_all, example_from_answer
from marslm.errors import InputError
from marslm.models.loading import load
from marslm.report import Row
from marslm.train.arguments import computes_in_bfloat16
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import TuneConfig
from marslm.train.run import prepare

BASELINE = "ar"
"""What the ratios are against: full fine-tuning."""

_WARM_UP = 2
_MEMORY_STEPS = 3
_MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """The model and batch that every objective is measured with.

    mask_only: blocks and their size for a mask-only adapter, as in the model's recipe.
    """

    model: str
    batch_size: int
    length: int
    mask_only: Mapping[str, int]


SETTINGS = {
    "tiny": Setting("tiny", 16, 128, {"block_size": 4, "anchors": 12}),
    "smollm2": Setting("smollm2", 4, 256, {"block_size": 5, "anchors": 48}),
}

OBJECTIVES: dict[str, dict[str, Any]] = {
    BASELINE: {"mode": "full", "objective": "ar"},
    "ar-lora": {"mode": "lora", "objective": "ar"},
    "mars": {"mode": "full", "block_size": 4},
    "mars-anchors": {"mode": "full", "block_size": 4, "anchors": 12},
    "mask-only": {"mode": "mask-only", "kl_weight": 0.0},
    "mask-only-kl": {"mode": "mask-only", "kl_weight": 0.5},
    "block-diffusion": {"mode": "full", "objective": "block_diffusion", "block_size": 4},
    "medusa": {"mode": "medusa", "block_size": 4},
}
"""Rows of the report. mars is the paper's: a noisy copy of every answer token."""


class Bench:
    """One objective ready to take steps on its own copy of the model."""

    def __init__(self, setting: Setting, name: str) -> None:
        """Load the model and its optimiser."""
        settings = {**OBJECTIVES[name], "steps": 1, "batch_size": setting.batch_size}
        if settings["mode"] == "mask-only":
            settings.update(setting.mask_only)
        config = TuneConfig.for_mode(**settings)
        model = load(setting.model)
        self._narrow = computes_in_bfloat16(model.network)
        _, self._objective = prepare(model, config)
        self._objective.train()
        data = TwoStreamData(make_examples(setting, model.tokenizer), config)
        size = setting.batch_size
        self._batches = [
            collate([data[turn, turn * size + i] for i in range(size)])
            for turn in range(len(data) // size)
        ]
        self._device = next(self._objective.parameters()).device
        trained = [p for p in self._objective.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=True)
        self._trained = trained
        self._turn = 0

    def step(self) -> tuple[float, int]:
        """Take one optimiser step; return its seconds and its clean tokens."""
        batch = _to(self._batches[self._turn % len(self._batches)], self._device)
        self._turn += 1
        start = time.perf_counter()
        counts = LossCounts(*(max(1.0, c) for c in self._objective.count_targets(batch)))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._narrow):
            loss, _ = self._objective(batch, counts)
        loss.backward()
        nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start, int((batch["clean"]["document"] >= 0).sum())


def make_examples(setting: Setting, tokenizer: Any) -> list[Example]:
    """Return examples that all objectives see: sums for tiny, else texts of one length.

    What the texts say does not matter to a step's cost; a quarter of each is prompt.
    """
    count = 4 * setting.batch_size
    if setting.model == "tiny":
        dialogues = [problem.dialogue for problem in arithmetic.problems(count, seed=0)]
        return encode_all(tokenizer, dialogues, max_length=setting.length)[0]
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 40_000, (count, setting.length), generator=draw).tolist()
    prompt = setting.length // 4
    return [example_from_answer(text[:prompt], text[prompt:], "made") for text in ids]


def measure(
    model: str,
    names: Sequence[str],
    *,
    rounds: int,
    listener: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """Return a row for each objective, ratios against `BASELINE`, which is always measured.

    Raises InputError for an unknown model or objective.
    """
    check(model, names)
    wanted = list(dict.fromkeys([BASELINE, *names]))
    memory = {}
    for name in wanted:
        listener(f"memory of {name}")
        memory[name] = _memory_in_a_process(model, name)
    plain, rows = Bench(SETTINGS[model], BASELINE), []
    for name in wanted:
        listener(f"time of {name}")
        other = plain if name == BASELINE else Bench(SETTINGS[model], name)
        rows.append(_row(model, name, _time_in_turn(plain, other, rounds), memory))
    return rows


def check(model: str, names: Sequence[str]) -> None:
    """Raise InputError for an unknown model or objective."""
    if model not in SETTINGS:
        raise InputError(f"no training benchmark for {model!r}: choose {' or '.join(SETTINGS)}")
    for name in names:
        if name not in OBJECTIVES:
            known = ", ".join(OBJECTIVES)
            raise InputError(f"unknown objective {name!r}: choose from {known}")


@dataclass(frozen=True)
class _Times:
    """Seconds per clean token of an objective's steps, and of the baseline's beside them."""

    ours: list[float]
    plain: list[float]

    @property
    def ratio(self) -> float:
        """The median over pairs of neighbours, so that a slow stretch counts on both sides."""
        return statistics.median(a / b for a, b in zip(self.ours, self.plain, strict=True))


def _time_in_turn(plain: Bench, other: Bench, rounds: int) -> _Times:
    """Step both alternately, the first of each pair in turn."""
    times = _Times([], [])
    for number in range(-_WARM_UP, rounds):
        pair = [(plain, times.plain), (other, times.ours)]
        for bench, found in pair if number % 2 else reversed(pair):
            seconds, tokens = bench.step()
            if number >= 0:
                found.append(seconds / tokens)
    return times


def _row(model: str, name: str, times: _Times, memory: dict[str, dict[str, float]]) -> Row:
    return {
        "model": model,
        "objective": name,
        "time_ratio": 1.0 if name == BASELINE else times.ratio,
        "memory_ratio": memory[name]["peak"] / memory[BASELINE]["peak"],
        "tokens_per_second": 1 / statistics.median(times.ours),
        "peak_mib": memory[name]["peak"],
        "steps_mib": memory[name]["steps"],
        "rounds": len(times.ours),
    }


def report_memory(model: str, name: str) -> None:
    """Take a few steps and print the peak, in MiB, as JSON; a process of its own runs this.

    peak: of the whole process, or of the GPU's allocations. steps: what the steps added to it.
    """
    bench = Bench(SETTINGS[model], name)
    before = _peak_mib()
    for _ in range(_MEMORY_STEPS):
        bench.step()
    print(json.dumps({"peak": _peak_mib(), "steps": _peak_mib() - before}))


def _peak_mib() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / _MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _memory_in_a_process(model: str, name: str) -> dict[str, float]:
    code = f"from marslm.tuning.cost import report_memory; report_memory({model!r}, {name!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"measuring {name} failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, dict):
        return {name: _to(value, device) for name, value in batch.items()}
    return batch.to(device)
