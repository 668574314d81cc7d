"""A `marslm serve` process for measurements: started, found ready, and stopped.

Knows nothing about what is asked of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx2

from marslm.errors import InputError

_ENDS_IN = 60
"""Seconds that a server has to drain."""


@dataclass(frozen=True)
class ServerProcess:
    """Where it listens, what the model is called, and its process."""

    url: str
    model: str
    pid: int

    def metric(self, name: str) -> float:
        """Return the sum over one metric's labels, 0 if it has not been seen."""
        lines = httpx2.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"marslm:{name}{{", f"marslm:{name} "))
        )

    def speed(self) -> dict[str, Any]:
        """Return where the knob stands."""
        found: dict[str, Any] = httpx2.get(f"{self.url}/v1/speed", timeout=30).json()
        return found

    def turn(self, strategy: str) -> None:
        """Turn the knob to a strategy."""
        answer = httpx2.put(f"{self.url}/v1/speed", json={"strategy": strategy}, timeout=30)
        if answer.is_error:
            raise InputError(f"the server refused to turn its knob: {answer.text.strip()}")

    @property
    def resident_mib(self) -> float:
        """Memory of the process, from /proc."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


@contextmanager
def serving(arguments: Sequence[str]) -> Iterator[ServerProcess]:
    """Run `marslm serve` with `arguments` on a free port; InputError if it does not start."""
    entry = "from marslm.cli.app import main; main()"
    command = [sys.executable, "-c", entry, "serve", "--port", "0", "--log-level", "warning"]
    with TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        try:
            model, _, rest = process.stdout.readline().partition(" at ")
            if not rest:
                process.wait(_ENDS_IN)
                errors.seek(0)
                raise InputError(f"the server did not start: {errors.read().strip()}")
            yield ServerProcess(rest.split()[0], model, process.pid)
        finally:
            process.terminate()
            process.wait(_ENDS_IN)
            process.stdout.close()
