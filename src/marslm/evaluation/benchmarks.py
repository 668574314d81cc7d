"""The six benchmarks of the paper, which of the harness' configurations they are, and the suites.

Knows nothing about models, nor about how a configuration becomes a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from marslm.errors import InputError

SuiteName: TypeAlias = Literal["paper", "long", "local"]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, made of one or several tasks of the harness.

    configs: their configurations, as a pattern under the harness' folder of tasks. score: the
    metric, and the filter of answers, that the score is. shots: solved examples in the prompt.
    file: its rows in the folder of local data, `{}` for the name of a subtask. fields: what a row
    must have. local_configs: where the local data is another part of the benchmark.
    """

    name: str
    configs: str
    score: str
    shots: int
    file: str
    fields: tuple[str, ...]
    local_configs: str | None = None

    @property
    def runs_code(self) -> bool:
        """Whether answers are programs that scoring has to run."""
        return self.name == "humaneval"


@dataclass(frozen=True)
class Suite:
    """How benchmarks are run. local: their rows come from the folder of local data."""

    name: SuiteName
    max_new_tokens: int
    local: bool

    def configs(self, benchmark: Benchmark) -> str:
        """Return the pattern of a benchmark's configurations."""
        return (self.local and benchmark.local_configs) or benchmark.configs


SUITES = {
    "paper": Suite("paper", 256, local=False),
    "long": Suite("long", 1024, local=False),
    "local": Suite("local", 256, local=True),
}

_GSM8K = ("gsm8k_test.jsonl.gz", ("question", "answer"))

_ALL = (
    Benchmark(
        "ifeval",
        "ifeval/ifeval.yaml",
        "prompt_level_strict_acc,none",
        0,
        "ifeval.jsonl.gz",
        ("key", "prompt", "instruction_id_list", "kwargs"),
    ),
    Benchmark(
        "bbh",
        "bbh/cot_fewshot/[a-z]*.yaml",
        "exact_match,get-answer",
        3,
        "bbh/{}.jsonl",
        ("input", "target"),
    ),
    Benchmark(
        "mmlu_pro",
        "mmlu_pro/mmlu_pro_*.yaml",
        "exact_match,custom-extract",
        0,
        "mmlu_pro_test.jsonl.gz",
        ("question", "options", "answer", "category"),
    ),
    Benchmark(
        "gpqa",
        "gpqa/cot_zeroshot/gpqa_main_cot_zeroshot.yaml",
        "exact_match,flexible-extract",
        0,
        "gpqa_diamond.jsonl.gz",
        ("Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3))),
        local_configs="gpqa/cot_zeroshot/gpqa_diamond_cot_zeroshot.yaml",
    ),
    Benchmark("gsm8k", "gsm8k/gsm8k-cot-zeroshot.yaml", "exact_match,flexible-extract", 0, *_GSM8K),
    Benchmark("gsm8k_5shot", "gsm8k/gsm8k-cot.yaml", "exact_match,flexible-extract", 5, *_GSM8K),
    Benchmark(
        "humaneval",
        "humaneval/humaneval_instruct.yaml",
        "pass@1,none",
        0,
        "humaneval.jsonl.gz",
        ("task_id", "prompt", "entry_point", "test"),
    ),
)
BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}

DEFAULT_TASKS = tuple(name for name in BENCHMARKS if name != "gsm8k_5shot")


def find_suite(name: str) -> Suite:
    """Return a suite; InputError for an unknown name."""
    if name not in SUITES:
        raise InputError(f"unknown suite {name!r}: choose from {', '.join(get_args(SuiteName))}")
    return SUITES[name]


def find_benchmarks(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks of these names, each once; InputError for none or an unknown one."""
    if not names:
        raise InputError(f"no task is named: choose from {', '.join(BENCHMARKS)}")
    for name in names:
        if name not in BENCHMARKS:
            raise InputError(f"unknown task {name!r}: choose from {', '.join(BENCHMARKS)}")
    return [BENCHMARKS[name] for name in dict.fromkeys(names)]
