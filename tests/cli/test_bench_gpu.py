"""`marslm bench gpu` as a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from marslm.bench import roofline


def test_the_command_reports(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "_SIZES", {"cpu": (1 << 12, 8)})
    report = tmp_path / "gpu.json"
    small = ("bench", "gpu", "--models", "tiny", "--batches", 1, "--context", 6, "-n", 8)
    done = cli(*small, "--device", "cpu", "--json", report)
    assert done.code == 0, done.err
    assert len(json.loads(report.read_text())["rows"]) == 6
    if not torch.cuda.is_available():
        assert "give --device cpu" in cli(*small).err
    for wrong in (("--acceptance", 2), ("--models", "8b"), ("--context", 0), ("--device", "tpu")):
        assert cli(*small, *wrong).code == 2
