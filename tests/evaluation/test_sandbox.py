"""What a program that a model wrote can do: compute, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from marslm.errors import InputError
from marslm.evaluation.sandbox import Limits, check_sandbox, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


def test_a_right_program_passes_and_a_wrong_one_says_why() -> None:
    assert run_program("import math, typing, re\nassert math.gcd(4, 6) == 2\nprint('x')").passed
    assert run_program("assert 1 == 2, 'no'").reason == "AssertionError: no"
    assert run_program("def f(:").reason == "SyntaxError: invalid syntax"


@pytest.mark.parametrize("early", ["raise SystemExit(0)", "import os; os._exit(0)"])
def test_leaving_early_is_not_passing(early: str) -> None:
    assert not run_program(early).passed


def test_time_is_limited() -> None:
    assert run_program("while True: pass", Limits(cpu_seconds=1)).reason == "time"
    assert run_program("import time; time.sleep(9)", Limits(wall_seconds=1)).reason == "time"


def test_memory_is_limited() -> None:
    limits = Limits(memory_bytes=256 << 20)
    assert run_program("x = bytearray(1 << 29)", limits).reason == "MemoryError"
    assert run_program("x = bytearray(1 << 24)", limits).passed


REFUSED = {
    "network": "import _socket; _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)",
    "local socket": "import _socket; _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)",
    "process": "import os; os.fork()",
    "program": "import os; os.execv('/bin/true', ['true'])",
    "spawn": "import os; os.posix_spawn('/bin/true', ['true'], {{}})",
    "thread": "import _thread; _thread.start_new_thread(print, ())",
    "signal": "import os; os.kill(os.getppid(), 9)",
    "write": "open({file!r}, 'w')",
    "append": "open({file!r}, 'a')",
    "update": "open({file!r}, 'r+')",
    "create": "open({file!r} + '2', 'x')",
    "delete": "import os; os.remove({file!r})",
    "rename": "import os; os.rename({file!r}, {file!r} + '2')",
    "folder": "import os; os.mkdir({file!r} + '2')",
    "mode": "import os; os.chmod({file!r}, 0)",
    "shorten": "import os; os.truncate({file!r}, 0)",
    "link": "import os; os.symlink('/', {file!r} + '2')",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_kernel_refuses(what: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    program = REFUSED[what].format(file=str(file))
    outcome = run_program(program)
    assert not outcome.passed
    refusals = ("not permitted", "can't start new thread", "not allowed to raise")
    assert any(refusal in outcome.reason for refusal in refusals), outcome.reason
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]
    assert file.stat().st_mode & 0o400


def test_the_environment_and_installed_packages_stay_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "x")
    assert run_program("import os; assert 'SECRET' not in os.environ").passed
    assert "No module named 'torch'" in run_program("import torch").reason


def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(InputError, match="on Linux on x86-64 only"):
        check_sandbox()
