"""The examples run, and stay as short as they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from helpers import random_prompts, solo
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

# serve_ray needs ray and goes on for ever; tests/serve/test_ray.py runs what it shows.
EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
    if path.name != "serve_ray.py"
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


def test_ones_own_strategy_is_exact_and_short(random_model: MarsModel) -> None:
    (path,) = (path for path in EXAMPLES if path.name == "own_strategy.py")
    names = runpy.run_path(str(path))
    newline = names["NEWLINE"]
    assert names["line_above"]([7, 8, 9, newline, 7], 5) == [8, 9]
    assert names["line_above"]([7, 8], 5) == []
    (line,) = random_prompts([6], seed=3)
    prompt = [*line, newline, *line, newline]
    plain, own = (
        solo(random_model, prompt, SamplingParams(strategy=name, max_new_tokens=12, block=4))
        for name in ("ar", "line_above")
    )
    assert own.ids == plain.ids
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
