"""FSDP2 and DeepSpeed train what one process does, save it whole, and go on from a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from marslm.errors import InputError
from marslm.models.loading import load
from marslm.train.config import TuneConfig
from marslm.train.launch import check_launch
from marslm.tuning.tune import TuneJob, tune
from train import sharded  # type: ignore[import-not-found]

# Two processes import everything and train several times: half a minute, more if others compute.
pytestmark = pytest.mark.timeout(1200)

RECIPES = Path(__file__).parents[2] / "recipes" / "launch"


def start(recipe: str, folder: Path, *jobs: str) -> None:
    """Run `jobs` in two processes under one of the recipes, cut down to this machine."""
    config = yaml.safe_load((RECIPES / recipe).read_text())
    config["num_processes"] = 2
    (folder / recipe).write_text(yaml.safe_dump(config))
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    command = [*launch, str(folder / recipe), "--main_process_port", "0", sharded.__file__]
    done = subprocess.run(
        [*command, str(folder), *jobs], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    files = [f for f in ("model.safetensors", "adapter_model.safetensors") if (folder / f).exists()]
    return load_file(folder / files[0])


def check(folder: Path, job: str, whole: Path) -> None:
    """Compare two processes' curve, resumed curve and result with one process'."""
    expected = sharded.run(whole, job)
    curves = json.loads((folder / job / "curves.json").read_text())
    assert curves["whole"] == pytest.approx(expected, abs=1e-5)
    assert curves["resumed"] == pytest.approx(expected[4:], abs=1e-5)
    assert len(set(expected)) == 5
    ours, theirs = weights(folder / job), weights(whole)
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        # An adapter is written in bfloat16, and a value may be rounded the other way.
        near = 1e-5 if weight.dtype == torch.float32 else 2**-8 * weight.abs().max() + 1e-5
        assert (ours[name] - weight).abs().max() < near, name


def test_fsdp2_trains_what_one_process_does(tmp_path: Path) -> None:
    jobs = ("mars", "ar", "lora")
    start("fsdp2-8.yaml", tmp_path, *jobs)
    for job in jobs:
        check(tmp_path, job, tmp_path / f"{job}-alone")
    assert load(str(tmp_path / "mars")).record is not None


@pytest.mark.deepspeed
def test_zero2_trains_what_one_process_does(tmp_path: Path) -> None:
    jobs = ("mars", "lora", "mask-only", "accumulated")
    start("zero2-8.yaml", tmp_path, *jobs)
    for job in jobs:
        check(tmp_path, job, tmp_path / f"{job}-alone")


FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
FSDP_WHOLE = {**FSDP, "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
ZERO3 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}


@pytest.mark.parametrize(
    ("mode", "environment", "fix"),
    [
        ("mask-only", FSDP_WHOLE, "ddp-8.yaml"),
        ("medusa", FSDP_WHOLE, "ddp-8.yaml"),
        ("full", {**FSDP_WHOLE, "FSDP_VERSION": "1"}, "fsdp_version: 2"),
        ("full", FSDP, "FULL_STATE_DICT"),
        ("full", ZERO3, "fsdp2-8.yaml"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(
    mode: str, environment: dict[str, str], fix: str, tmp_path: Path, monkeypatch: Any
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = TuneConfig.for_mode(mode, steps=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=fix):
        tune(TuneJob("no such model", "no such file", tmp_path / "out", config))


def test_a_deepspeed_file_is_read_for_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ds.json"
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    file.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    with pytest.raises(InputError, match="ZeRO-3"):
        check_launch("full")
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    check_launch("mask-only")
    for broken in ("{", "[]", '{"zero_optimization": {"stage": "auto"}}'):
        file.write_text(broken)
        with pytest.raises(InputError, match=r"ds.json cannot be read"):
            check_launch("full")
    file.unlink()
    with pytest.raises(InputError, match=r"ds.json cannot be read"):
        check_launch("full")
