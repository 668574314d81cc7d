"""Several processes train as one does, and a killed run goes on."""

from __future__ import annotations

import json
import signal
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


@pytest.mark.parametrize("settings", [(), ("accumulation=2",), ('mode="mask-only"',)])
def test_two_processes_have_the_curve_of_one(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """The same global batch: data parallelism over gloo, with and without accumulation."""
    whole = processes.run(tmp_path / "one", mode="mask-only" if "mode" in str(settings) else "full")
    done = start(tmp_path / "two", *settings, ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert losses(tmp_path / "two") == pytest.approx(whole, abs=1e-5)
    assert len(set(whole)) == 5


def test_two_processes_resume_the_curve_of_one(tmp_path: Path) -> None:
    whole = processes.run(tmp_path / "one")
    parts = tmp_path / "parts"
    done = start(parts, "steps=3", ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    # The schedule belongs to the length, so the first part is the longer run's, cut short.
    assert len(losses(parts)) == 3
    longer = start(parts, "steps=5", "resume=true", ranks=2)
    assert longer.returncode == 0, longer.stderr[-2000:]
    assert len(losses(parts)) == 2
    assert len(whole) == 5


def test_a_run_killed_in_the_middle_goes_on(tmp_path: Path) -> None:
    """kill -9 after the third step; what is saved until then is whole."""
    whole = processes.run(tmp_path / "whole", checkpoint_minutes=1e-9)
    killed = start(tmp_path / "killed", "checkpoint_minutes=1e-9", "die_after=4")
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "mars.json").exists()
    resumed = processes.run(tmp_path / "killed", checkpoint_minutes=1e-9, resume=True)
    assert resumed == pytest.approx(whole[3:], abs=1e-6)
    ours = load_file(tmp_path / "killed" / "model.safetensors")
    for name, weight in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert (ours[name] - weight).abs().max() < 1e-6, name
