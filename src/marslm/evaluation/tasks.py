"""From a benchmark to the harness' tasks: its own configurations, with what must be another's.

Prompts, filters and metrics are the harness' own. What is changed: the length of answers, greedy
decoding, the number of examples, where rows come from, and how HumanEval's programs are run. Knows
nothing about models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from marslm.data.folder import data_file
from marslm.data.rows import read_rows
from marslm.errors import InputError
from marslm.evaluation import humaneval
from marslm.evaluation.benchmarks import Benchmark, Suite
from marslm.evaluation.sentences import provide_punkt

Config: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[dict[str, Any]]

_ROOT = Path(lm_eval.tasks.__file__).parent
_FEWSHOT_SEED = 1234
"""The harness' own default."""


def build_tasks(benchmark: Benchmark, suite: Suite) -> dict[str, ConfigurableTask]:
    """Return the benchmark's tasks by name; without local data they come from the Hub."""
    tasks = {}
    for config in load_configs(benchmark, suite):
        task = ConfigurableTask(config=config)
        task.set_fewshot_seed(seed=_FEWSHOT_SEED)
        tasks[config["task"]] = task
    return tasks


def load_configs(benchmark: Benchmark, suite: Suite) -> list[Config]:
    """Return the harness' configurations of a benchmark, changed as the suite wants them."""
    if benchmark.name == "ifeval":
        provide_punkt()
    configs = [_load_config(path, benchmark) for path in paths_of(benchmark, suite)]
    for config in configs:
        config["num_fewshot"] = benchmark.shots
        config["generation_kwargs"] = {
            "until": config["generation_kwargs"]["until"],
            "do_sample": False,
            "max_gen_toks": suite.max_new_tokens,
        }
    if suite.local:
        _use_local_rows(configs, benchmark)
    return configs


def check_local_files(benchmarks: Sequence[Benchmark], suite: Suite) -> None:
    """Raise InputError unless the files of all these benchmarks are there."""
    for benchmark in benchmarks:
        for path in paths_of(benchmark, suite):
            data_file(_file_name(benchmark, load_yaml(path, resolve_func=False)), benchmark.name)


def paths_of(benchmark: Benchmark, suite: Suite) -> list[Path]:
    """Return the harness' files that configure a benchmark."""
    return sorted(_ROOT.glob(suite.configs(benchmark)))


def _load_config(path: Path, benchmark: Benchmark) -> Config:
    config: Config = load_yaml(path, resolve_func=not benchmark.runs_code)
    for structural in ("tag", "group", "task_list"):
        config.pop(structural, None)
    if benchmark.runs_code:
        config |= humaneval.SCORING | {"process_results": humaneval.process_results}
    if benchmark.name == "gpqa":
        config["process_docs"] = _once(config["process_docs"])
    return config


def _once(process: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `process` with fixed draws and one result however often it is asked.

    The harness' GPQA shuffles the choices each time its rows are read, which is twice.
    """
    kept: list[Any] = []

    def process_docs(dataset: Any) -> Any:
        if not kept:
            state = random.getstate()
            random.seed(_FEWSHOT_SEED)
            kept.append(process(dataset))
            random.setstate(state)
        return kept[0]

    return process_docs


def _file_name(benchmark: Benchmark, config: Config) -> str:
    return benchmark.file.format(config.get("dataset_name"))


def _use_local_rows(configs: Sequence[Config], benchmark: Benchmark) -> None:
    """Have the tasks read their rows from the folder of local data."""
    files: dict[str, Rows] = {}
    for config in configs:
        name = _file_name(benchmark, config)
        if name not in files:
            files[name] = _read(name, benchmark)
        rows = files[name]
        if benchmark.name == "mmlu_pro":
            subject = config.pop("process_docs").keywords["subject"]
            rows = [row for row in rows if row["category"] == subject]
        split = config.get("test_split") or config["validation_split"]
        others = ("training_split", "fewshot_split")
        config |= {key: None for key in others if config.get(key) != split}
        config["custom_dataset"] = _dataset_maker(split, rows)


def _dataset_maker(split: str, rows: Rows) -> Callable[..., dict[str, datasets.Dataset]]:
    dataset = datasets.Dataset.from_list(rows)
    return lambda **_: {split: dataset}


def _read(name: str, benchmark: Benchmark) -> Rows:
    rows: Rows = []
    for where, row in read_rows(str(data_file(name, benchmark.name))):
        missing = [field for field in benchmark.fields if field not in row]
        if missing:
            raise InputError(f"{where}: no {missing[0]}; is this {benchmark.name}'s own file?")
        rows.append({field: row[field] for field in benchmark.fields})
    if not rows:
        raise InputError(f"{name}: no rows; copy the file anew")
    if benchmark.name == "ifeval":
        for each in rows:
            # The authors' later files name the language first, which the harness does not.
            ids = each["instruction_id_list"]
            each["instruction_id_list"] = [name.removeprefix("en:") for name in ids]
    return rows
