"""The harness' own tasks, with local rows: right answers score, wrong ones do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks._yaml_loader import load_yaml

from marslm.errors import InputError
from marslm.evaluation.answering import Generation
from marslm.evaluation.benchmarks import BENCHMARKS, SUITES
from marslm.evaluation.harness_model import MarsLM
from marslm.evaluation.items import Item, choose_items, run_items
from marslm.evaluation.tasks import build_tasks, check_local_files, load_configs, paths_of

Answer = Callable[[dict[str, Any]], str]

RIGHT: dict[str, Answer] = {
    "ifeval": lambda doc: "SO DR. X GOES HOME. IT IS A LONG ENGLISH SENTENCE THAT ENDS HERE.",
    "bbh": lambda doc: f"Let us see. So the answer is {doc['target']}.",
    "mmlu_pro": lambda doc: "Let us see. The answer is (B).",
    "gpqa": lambda doc: f"The answer is {doc['answer']}",
    "gsm8k": lambda doc: f"2, or so. It is ${doc['answer'].split()[-1]}.",
    "gsm8k_5shot": lambda doc: f"The answer is {doc['answer'].split()[-1]}.",
    "humaneval": lambda doc: "    return a + b\n```\nThat is it.",
}
WRONG: dict[str, Answer] = {
    "ifeval": lambda doc: "One, two. Three. Four.",
    "bbh": lambda doc: "So the answer is no.",
    "mmlu_pro": lambda doc: "The answer is (A).",
    "gpqa": lambda doc: "The answer is (Z)",
    "gsm8k": lambda doc: "It is 1, I think.",
    "gsm8k_5shot": lambda doc: "The answer is 1.",
    "humaneval": lambda doc: "    return a - b\n```",
}


class Oracle(MarsLM):
    """Answers as told, and keeps the prompts."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("tiny", strategy="ar")
        self._answer = answer
        self.prompts: list[str] = []

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        self.prompts = [each.args[0] for each in requests]
        texts = [self._answer(each.doc) for each in requests]
        self.generations = {
            (each.task_name, each.doc_id): Generation(text, 4, 2, 1.0, "stop")
            for each, text in zip(requests, texts, strict=True)
        }
        return texts


def run(name: str, answer: Answer, limit: int | None = 2) -> tuple[list[Item], list[str]]:
    benchmark = BENCHMARKS[name]
    tasks = build_tasks(benchmark, SUITES["local"])
    sizes = {task: len(built.eval_docs) for task, built in tasks.items()}
    lm = Oracle(answer)
    return run_items(lm, benchmark, tasks, choose_items(sizes, limit, 0)), lm.prompts


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_right_answers_score_and_wrong_ones_do_not(name: str) -> None:
    items, prompts = run(name, RIGHT[name])
    assert [item.score for item in items] == [1.0, 1.0]
    assert [item.prompt for item in items] == prompts
    items, _ = run(name, WRONG[name])
    assert [item.score for item in items] == [0.0, 0.0]


@pytest.mark.usefixtures("data_folder")
def test_prompts_are_chats_with_the_harness_questions() -> None:
    _, bbh = run("bbh", RIGHT["bbh"])
    assert all(prompt.count("<|im_start|>assistant\n") == 4 for prompt in bbh)
    assert all(
        prompt.endswith("step by step.\n<|im_end|>\n<|im_start|>assistant\n") for prompt in bbh
    )
    _, gsm8k = run("gsm8k_5shot", RIGHT["gsm8k"])
    assert all(prompt.count("The answer is") == 5 for prompt in gsm8k)
    _, code = run("humaneval", RIGHT["humaneval"])
    opened = [prompt.rpartition("<|im_start|>assistant\n")[2] for prompt in code]
    assert all(text.startswith("Here is the completed function:\n```python\n") for text in opened)
    assert all(text.endswith('"""Add."""\n\n') for text in opened)
    _, law = run("mmlu_pro", RIGHT["mmlu_pro"], limit=None)
    assert len(law) == 28
    assert all("C. maybe\nAnswer: Let's think step by step.<|im_end|>" in prompt for prompt in law)


@pytest.mark.usefixtures("data_folder")
def test_the_choices_of_gpqa_are_shuffled_once_and_alike() -> None:
    first, second = (run("gpqa", RIGHT["gpqa"], limit=None)[0] for _ in range(2))
    assert [item.prompt for item in first] == [item.prompt for item in second]
    assert len({item.target for item in first}) > 1
    for item in first:
        line = next(line for line in item.prompt.splitlines() if line.startswith(item.target))
        assert "right" in line


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_only_what_must_be_is_changed(name: str) -> None:
    benchmark, suite = BENCHMARKS[name], SUITES["local"]
    changed = {
        *("generation_kwargs", "num_fewshot", "custom_dataset", "training_split"),
        *("fewshot_split", "process_docs", "tag"),
    }
    if name == "humaneval":
        changed |= {"filter_list", "metric_list", "process_results"}
    for path, config in zip(
        paths_of(benchmark, suite), load_configs(benchmark, suite), strict=True
    ):
        theirs = load_yaml(path, resolve_func=False)
        mine = {key: value for key, value in config.items() if not _holds_functions(value)}
        different = {key for key, value in mine.items() if theirs.get(key) != value}
        assert different <= changed
        assert config["generation_kwargs"] == {
            "until": theirs["generation_kwargs"]["until"],
            "do_sample": False,
            "max_gen_toks": 256,
        }


def _holds_functions(value: object) -> bool:
    return callable(value) or "<function" in str(value) or "functools.partial" in str(value)


HUB = {
    "ifeval": ("google/IFEval", None),
    "bbh": ("SaylorTwift/bbh", "boolean_expressions"),
    "mmlu_pro": ("TIGER-Lab/MMLU-Pro", None),
    "gpqa": ("Idavidrein/gpqa", "gpqa_main"),
    "gsm8k": ("openai/gsm8k", "main"),
    "gsm8k_5shot": ("openai/gsm8k", "main"),
    "humaneval": ("openai/openai_humaneval", None),
}


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize(("suite", "tokens"), [("paper", 256), ("long", 1024)])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_hub_suites_build_from_the_hubs_names(
    name: str, suite: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hub is not asked here: what would be loaded has its names and columns."""
    local = build_tasks(BENCHMARKS[name], SUITES["local"])
    rows = next(iter(local.values())).eval_docs
    if name == "mmlu_pro":
        rows = datasets.Dataset.from_list([{**row, "cot_content": "A: x"} for row in rows])
    asked = []

    def load_dataset(path: str, name: str | None = None, **_: object) -> dict[str, Any]:
        asked.append((path, name))
        return {"train": rows, "test": rows, "validation": rows}

    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", load_dataset)
    if name == "mmlu_pro":
        asked_benchmark = BENCHMARKS[name]
        configs = load_configs(asked_benchmark, SUITES[suite])
        assert {config["dataset_path"] for config in configs} == {HUB[name][0]}
        assert len(configs) == 14
        return
    tasks = build_tasks(BENCHMARKS[name], SUITES[suite])
    assert asked[0] == HUB[name]
    assert len(tasks) == len(local)
    for task in tasks.values():
        assert task.config.generation_kwargs["max_gen_toks"] == tokens
        assert task.config.num_fewshot == BENCHMARKS[name].shots


@pytest.mark.usefixtures("data_folder")
def test_missing_and_foreign_files_are_named(data_folder: Path) -> None:
    benchmark = BENCHMARKS["gsm8k"]
    file = data_folder / "gsm8k_test.jsonl.gz"
    file.rename(data_folder / "else")
    with pytest.raises(InputError, match=r"gsm8k: there is no .*gsm8k_test.jsonl.gz; set MARSLM_"):
        check_local_files([benchmark], SUITES["local"])
    (data_folder / "bbh" / "navigate.jsonl").write_text(json.dumps({"input": "x"}) + "\n")
    with pytest.raises(InputError, match=r"navigate.jsonl:1: no target; is this bbh's own file"):
        build_tasks(BENCHMARKS["bbh"], SUITES["local"])


def test_items_are_even_seeded_and_grow() -> None:
    sizes = {f"task{n}": 10 for n in range(7)} | {"small": 2}
    few, more = choose_items(sizes, 20, 0), choose_items(sizes, 40, 0)
    assert sum(map(len, few.values())) == 20
    assert {len(documents) for documents in few.values()} == {2, 3}
    assert all(set(documents) <= set(more[name]) for name, documents in few.items())
    assert len(more["small"]) == 2
    assert few == choose_items(sizes, 20, 0) != choose_items(sizes, 20, 1)
    assert all(documents == sorted(documents) for documents in more.values())
    everything = choose_items(sizes, None, 0)
    assert everything == choose_items(sizes, 1000, 0)
    assert sum(map(len, everything.values())) == 72
