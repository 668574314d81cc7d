"""The SmolLM2-135M recipe: its own prompts, and all of its targets on the tiny model."""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = Path("recipes", "smollm2-135m")
MARSLM = f'{sys.executable} -c "from marslm.cli.app import main; main()"'


def written(kind: str, count: int) -> list[str]:
    command = [sys.executable, str(ROOT / RECIPE / "prompts.py"), kind, str(count)]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    return [json.loads(line)["prompt"] for line in run.stdout.splitlines()]


@pytest.mark.parametrize(("kind", "least"), [("instructions", 3000), ("code", 900)])
def test_prompts_are_many_different_and_always_the_same(kind: str, least: int) -> None:
    prompts = written(kind, 10_000)
    assert len(prompts) >= least
    assert len(set(prompts)) == len(prompts)
    assert written(kind, 50) == prompts[:50]


def test_examples_in_programming_tasks_are_well_formed() -> None:
    stubs = [m[0] for p in written("code", 10_000) for m in re.finditer(r'def .*?"""\n', p, re.S)]
    stubs = [stub for stub in stubs if stub.count('"""') == 2]
    assert len(stubs) > 300
    for stub in stubs:
        (function,) = ast.parse(stub).body
        assert isinstance(function, ast.FunctionDef)
        (example,) = doctest.DocTestParser().get_examples(ast.get_docstring(function) or "")
        assert example.source.startswith(f"{function.name}(")
        ast.literal_eval(example.want.strip())


def make(out: Path, *arguments: str) -> None:
    settings = {
        "MARSLM": MARSLM,
        "PYTHON": sys.executable,
        "MODEL": "tiny",
        "OUT": str(out),
        "INSTRUCTIONS": "3",
        "CODE": "2",
        "NEW_TOKENS": "8",
        "BENCH_PROMPTS": "2",
        "CALIBRATION": "4",
        "LENGTH": "--steps 2",
        "GPU_LENGTH": "--steps 2",
        "GPU_BATCH": "2",
    }
    environment = {**os.environ, "MARSLM_DATA": "", "HF_HUB_OFFLINE": "1"}
    command = ["make", "-f", str(RECIPE / "Makefile"), *arguments]
    command += [f"{name}={value}" for name, value in settings.items()]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.recipes
def test_from_prompts_to_a_card(tmp_path: Path) -> None:
    """The tiny model cannot write prompts, so held-out ones and what `self` leaves are given."""
    out = tmp_path / "out"
    out.mkdir()
    asked = [{"prompt": f"What is {i} + {i}, and why is it so?"} for i in range(4)]
    (out / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (out / "calibration.jsonl").write_text((out / "heldout.jsonl").read_text())
    (out / "train-self.prompts.jsonl").write_text('{"seed": 0, "prompt": "What is rain?"}\n')
    answered = {"prompt": "What is rain?", "response": "Water.", "source": "self"}
    (out / "train-self.jsonl").write_text(json.dumps(answered) + "\n")
    make(out, "written", "data", "-o", "self", "-o", "heldout")
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert {row["source"].partition(".")[0] for row in rows} == {"self", "instructions", "code"}
    masks = out / "mask-only-gpu"
    adapter = f"ADAPTER={masks}"
    make(out, "mask-only-gpu", "calibrate", "evaluate", "card", adapter)
    assert (masks / "calibration.json").exists()
    card = (masks / "README.md").read_text()
    assert f"{len(rows)} rows" in card
    assert " hours, 2 steps," in card
    assert "| lossless |" in card
    make(out, "lora", f"START={masks}")
    record = json.loads((out / "lora" / "mars.json").read_text())
    assert record["training"]["continues"]["mode"] == "mask-only"


@pytest.mark.recipes
def test_full_trees(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "3 + 4 = ?"}) + "\n")
    command = [sys.executable, str(RECIPE / "full_tree.py"), "--model", "tiny", "--block", "4"]
    command += ["--strategies", "ar,full-tree", "--baseline", "none", "--data", str(prompts)]
    command += ["--max-new-tokens", "24", "--json", str(tmp_path / "rows.json")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    (tree,) = (row for row in rows if row["strategy"] == "full-tree")
    assert tree["identical_to_ar"] == 1
    # The last token, up to 3 drafts, and 3 masks after each outcome.
    assert 4 < tree["rows_per_forward"] <= 1 + 3 + 4 * 3
