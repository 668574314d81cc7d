"""The machine-readable report: its four fields, and all or nothing on disk."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from marslm import __version__
from marslm.report import write_report

ROWS = [{"strategy": "ar", "tokens": 12, "tau": None}, {"strategy": "mars", "tau": 0.9}]


def test_a_report_is_version_machine_command_and_rows(tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.json"
    write_report(file, ROWS, command="marslm bench decode")
    report = json.loads(file.read_text())
    machine = report.pop("machine")
    assert report == {"version": __version__, "command": "marslm bench decode", "rows": ROWS}
    assert list(report["rows"][0]) == ["strategy", "tokens", "tau"]
    assert machine["cores"] == os.cpu_count()
    assert machine["torch"] == torch.__version__
    assert machine["processor"]
    assert machine.keys() >= {"python", "gpu", "cpu_capability"}


def test_the_command_can_be_pasted_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["/usr/local/bin/marslm", "generate", "What's 2 + 2?", "-n", "3"]
    )
    write_report(tmp_path / "report.json", [])
    command = json.loads((tmp_path / "report.json").read_text())["command"]
    assert command == """marslm generate 'What'"'"'s 2 + 2?' -n 3"""


def test_a_report_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")
    with pytest.raises(TypeError):
        write_report(file, [{"tokens": torch.tensor(1)}])  # type: ignore[dict-item]
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
