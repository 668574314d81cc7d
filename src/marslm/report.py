"""The machine-readable side of every command that measures: `--json FILE`.

A report is `{"version", "machine", "command", "rows"}` with one flat object a row. Knows nothing
about what the rows mean.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from marslm import files
from marslm._version import __version__
from marslm.errors import InputError

Row: TypeAlias = Mapping[str, "str | int | float | bool | None"]


def write_report(path: Path, rows: Sequence[Row], *, command: str | None = None) -> None:
    """Write `rows` to `path` atomically; `command` defaults to this process' own command line."""
    report = {
        "version": __version__,
        "machine": describe_machine(),
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "rows": list(rows),
    }
    files.write_text(path, json.dumps(report, indent=1) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a report; InputError for a file that is none."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [dict(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a report of `marslm bench decode --json FILE` or the like"
        ) from error


def describe_machine() -> dict[str, str | int | None]:
    """Return the processor, its cores and the Python and torch versions the figures come from."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
