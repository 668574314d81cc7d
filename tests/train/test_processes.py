"""Several processes train as one does, and a killed run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from train import processes  # type: ignore[import-not-found]

SCRIPT = str(Path(processes.__file__))


def start(folder: Path, *settings: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable]
    if ranks > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [*launch, SCRIPT, str(folder), *settings],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def losses(folder: Path) -> list[float]:
    found: list[float] = json.loads((folder / "losses.json").read_text())
    return found


def test_two_processes_that_are_killed_and_go_on_have_the_curve_of_one(tmp_path: Path) -> None:
    """Data parallelism over gloo with accumulation; kill -9 in the middle, then --resume.

    Each process takes a quarter of the global batch at a time. Starting processes is most of the
    cost, so one test shows all of it.
    """
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    expected = processes.run(whole)
    settings = ("accumulation=2", "checkpoint_minutes=1e-9")
    killed = start(parts, *settings, "die_after=3", ranks=2)
    assert killed.returncode != 0
    assert not (parts / "mars.json").exists()
    first = losses(parts)
    assert first == pytest.approx(expected[:3], abs=1e-5)
    done = start(parts, *settings, "resume=true", ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    rest = losses(parts)
    assert 2 <= len(rest) < 5
    assert rest == pytest.approx(expected[-len(rest) :], abs=1e-5)
    assert len(set(expected)) == 5
    ours = load_file(parts / "model.safetensors")
    for name, weight in load_file(whole / "model.safetensors").items():
        assert (ours[name] - weight).abs().max() < 1e-5, name
