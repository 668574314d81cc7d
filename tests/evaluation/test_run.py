"""Whole evaluations on a tiny model: equal modes score alike, and a stopped run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from marslm.errors import InputError
from marslm.evaluation.benchmarks import BENCHMARKS, Suite
from marslm.evaluation.folder import read_items
from marslm.evaluation.modes import Mode, modes_of
from marslm.evaluation.run import Plan, Progress, run

pytestmark = pytest.mark.usefixtures("data_folder")

SHORT = Suite("local", 12, local=True)
MODES = modes_of(["base", "ar", "lossless-chain", "mars"], [0.9])
PLAN = Plan("tiny", None, SHORT, [BENCHMARKS["gsm8k"], BENCHMARKS["mmlu_pro"]], MODES, limit=3)


def ignore(_: Progress) -> None:
    pass


def test_rows_have_scores_counts_and_differences(tmp_path: Path) -> None:
    rows = run(PLAN, tmp_path / "out", ignore)
    assert [(row["task"], row["strategy"], row["tau"]) for row in rows] == [
        (task, strategy, 0.9 if strategy == "mars" else None)
        for task in ("gsm8k", "mmlu_pro")
        for strategy in ("base", "ar", "lossless-chain", "mars")
    ]
    for row in rows:
        assert row["n"] == 3
        assert row["tokens"] == 36
        assert row["tokens_per_forward"] == row["tokens"] / row["forwards"]
        assert row["truncated"] == 1
        assert row["seconds"] > 0
        assert row["score_low"] <= row["score"] <= row["score_high"]
        if row["strategy"] in ("base", "lossless-chain"):
            assert (row["identical"], row["difference"], row["reference"]) == (1, 0, "ar")
        if row["strategy"] in ("base", "ar"):
            assert row["forwards"] == row["tokens"]
    items = read_items(tmp_path / "out" / "ar")
    assert [item.id for item in items["gsm8k"]] == [
        item.id for item in read_items(tmp_path / "out" / "mars-0.9")["gsm8k"]
    ]


def test_a_stopped_run_goes_on_and_a_larger_one_keeps_what_is_there(tmp_path: Path) -> None:
    output = tmp_path / "out"

    def stop(progress: Progress) -> None:
        if progress.answered == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(PLAN, output, stop)
    last = Progress(0)

    def keep(progress: Progress) -> None:
        last.__dict__.update(progress.__dict__)

    rows = run(PLAN, output, keep)
    assert (last.answered, last.done, last.total) == (24 - 5, 24, 24)
    assert rows == run(PLAN, output, keep)
    assert last.answered == 0
    run(replace(PLAN, limit=4), output, keep)
    assert (last.answered, last.total) == (8, 32)
    commands = json.loads((output / "config.json").read_text())["commands"]
    assert len(commands) == len(set(commands))


def test_a_folder_holds_one_evaluation(tmp_path: Path) -> None:
    short = replace(PLAN, modes=[Mode("ar")], limit=1)
    run(short, tmp_path, ignore)
    with pytest.raises(InputError, match="holds results with seed 0, not 1: name another --output"):
        run(replace(short, seed=1), tmp_path, ignore)
    config = json.loads((tmp_path / "config.json").read_text())
    config["identity"]["processor"] = "Abacus"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="holds results with processor Abacus, not "):
        run(short, tmp_path, ignore)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json is damaged: name another --output"):
        run(short, tmp_path, ignore)


def test_results_belong_to_the_weights_of_an_adapter(tmp_path: Path) -> None:
    """Where its folder lies and what its card says changes no answer."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
    plan = replace(PLAN, adapter=str(here))
    identity = plan.identity
    (there / "README.md").write_text("A card.")
    assert replace(plan, adapter=str(there)).identity == identity
    for name in ("adapter_model.safetensors", "mars.json", "calibration.json"):
        (there / name).write_bytes(b"others")
        changed = replace(plan, adapter=str(there)).identity
        assert changed != identity
        identity = changed


def test_results_belong_to_the_weights_of_a_model(tmp_path: Path) -> None:
    """A run that was trained on lies in the same place as before."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    plan = replace(PLAN, model=str(model))
    before = plan.identity
    (model / "log.jsonl").write_text("{}")
    assert plan.identity == before
    (model / "model.safetensors").write_bytes(b"others")
    assert plan.identity != before


def test_results_without_items_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results of a decoding mode: run marslm eval"):
        read_items(tmp_path)
    for mode in ("ar", "mars-0.9"):
        (tmp_path / mode).mkdir()
        (tmp_path / mode / "answers.jsonl").touch()
    with pytest.raises(InputError, match=r"name one of its modes, as .*/ar"):
        read_items(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda plan: replace(plan, limit=0), "limit is 0: give at least 1"),
        (lambda plan: replace(plan, batch=0), "batch is 0: give at least 1"),
        (
            lambda plan: replace(plan, benchmarks=[BENCHMARKS["humaneval"]]),
            "humaneval runs programs that the model wrote: add --allow-code",
        ),
        (lambda plan: replace(plan, model="/nowhere"), "cannot load model"),
        (lambda plan: replace(plan, adapter="/nowhere"), "/nowhere"),
        (
            lambda plan: replace(plan, modes=modes_of(["ar", "draft_model"], [0.9])),
            "draft_model",
        ),
    ],
)
def test_bad_plans_are_refused_before_any_work(
    changed: Callable[[Plan], Plan], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        run(changed(PLAN), tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


def test_modes_have_what_their_strategy_has() -> None:
    modes = modes_of(["base", "ar", "lossless", "mars"], [0.9, "auto:0.02"], [None, 8])
    assert [mode.name for mode in modes] == [
        *("base", "ar", "lossless", "lossless-B8"),
        *("mars-0.9", "mars-0.9-B8", "mars-auto-0.02", "mars-auto-0.02-B8"),
    ]
    with pytest.raises(InputError, match="unknown strategy 'warp': choose from base, ar, mars"):
        modes_of(["warp"], [0.9])
    with pytest.raises(InputError, match="tau is 2"):
        modes_of(["mars"], [2])
    with pytest.raises(InputError, match="no strategy is named"):
        modes_of([], [0.9])
