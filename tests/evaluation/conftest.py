"""A folder of made rows in the form of the public data sets."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from marslm.evaluation.benchmarks import BENCHMARKS, SUITES
from marslm.evaluation.tasks import paths_of

ROWS: dict[str, list[dict[str, object]]] = {
    "ifeval.jsonl.gz": [
        {
            "key": 1,
            "prompt": "Write two sentences without a comma.",
            "instruction_id_list": [
                "en:punctuation:no_comma",
                "en:length_constraints:number_sentences",
            ],
            "kwargs": [{}, {"num_sentences": 3, "relation": "less than"}],
        },
        {
            "key": 2,
            "prompt": "Write in capitals.",
            "instruction_id_list": ["en:change_case:english_capital"],
            "kwargs": [{}],
        },
    ],
    "gsm8k_test.jsonl.gz": [
        {"question": f"{n} and {n}?", "answer": f"Twice {n}.\n#### {2 * n}"} for n in range(3, 8)
    ],
    "gpqa_diamond.jsonl.gz": [
        {
            "Question": f"Question {n}?",
            "Correct Answer": f"right {n}",
            **{f"Incorrect Answer {k}": f"wrong {n} {k}" for k in (1, 2, 3)},
            "Record ID": f"rec{n}",
        }
        for n in range(6)
    ],
    "humaneval.jsonl.gz": [
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f'def add{n}(a, b):\n    """Add."""\n',
            "entry_point": f"add{n}",
            "test": f"def check(candidate):\n    assert candidate(1, {n}) == {n + 1}\n",
        }
        for n in (1, 2)
    ],
}
SUBJECTS = (
    *("biology", "business", "chemistry", "computer science", "economics", "engineering"),
    *("health", "history", "law", "math", "other", "philosophy", "physics", "psychology"),
)


@pytest.fixture(autouse=True)
def _quiet_harness() -> None:
    """It warns of each task's settings."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of made rows; MARSLM_DATA names it."""
    folder = tmp_path / "data"
    (folder / "bbh").mkdir(parents=True)
    for name, rows in ROWS.items():
        write(folder / name, rows)
    questions = [
        {
            "question": f"{subject} {n}?",
            "options": ["no", "yes", "maybe"],
            "answer": "B",
            "category": subject,
        }
        for subject in SUBJECTS
        for n in range(2)
    ]
    write(folder / "mmlu_pro_test.jsonl.gz", questions)
    for path in paths_of(BENCHMARKS["bbh"], SUITES["local"]):
        name = load_yaml(path, resolve_func=False)["dataset_name"]
        rows = [{"input": f"{name} {n}?", "target": f"({n})"} for n in range(3)]
        write(folder / "bbh" / f"{name}.jsonl", rows)
    monkeypatch.setenv("MARSLM_DATA", str(folder))
    monkeypatch.setenv("MARSLM_CACHE", str(tmp_path / "cache"))
    return folder


def write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
