"""Runs a Python program that nobody has read: a process of its own, limited by the kernel.

Time, memory, no network, no other processes, no change to any file (`sandbox_child`). Knows
nothing about benchmarks.
"""

from __future__ import annotations

import json
import platform
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from marslm.errors import InputError

_CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True)
class Limits:
    """What a program may use. wall_seconds: larger, since a busy machine is not its fault."""

    cpu_seconds: int = 5
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class Outcome:
    """passed: it ran to its end. reason: otherwise the last line of its error, or "time"."""

    passed: bool
    reason: str = ""


def check_sandbox() -> None:
    """Raise InputError on a machine whose kernel cannot lock a process in."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise InputError(
            "code that a model wrote is run on Linux on x86-64 only: elsewhere leave its tasks out"
        )


def run_program(program: str, limits: Limits = Limits()) -> Outcome:
    """Run `program` to its end, within its limits."""
    check_sandbox()
    token = secrets.token_hex(16)
    request = {
        "program": program,
        "token": token,
        "cpu_seconds": limits.cpu_seconds,
        "memory_bytes": limits.memory_bytes,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", str(_CHILD)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=limits.wall_seconds,
            env={},
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, "time")
    if done.stdout.decode(errors="replace").endswith(token):
        return Outcome(True)
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return Outcome(False, "time" if done.returncode < 0 else (lines or ["it ended early"])[-1])
