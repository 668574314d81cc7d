"""C sources of this package, compiled on first use for this machine's CPU.

What is compiled is kept in the cache folder, under the source, the compiler and the CPU that it was
made from and for. Knows nothing about what the functions do.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from marslm.models.gguf import cache_folder

HEADERS = Path(__file__).parent
"""Where included files are, beside those next to a source."""

_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")


def load_library(source: Path, **functions: tuple[int, int]) -> ctypes.CDLL | None:
    """Return the compiled `source`, None without a compiler that takes it.

    functions: for each how many pointers, then how many ints it takes; it returns nothing.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None
    try:
        library = ctypes.CDLL(str(_compiled(source, compiler)))
    except (OSError, subprocess.CalledProcessError):
        return None
    for name, (pointers, ints) in functions.items():
        function = getattr(library, name)
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int] * ints
        function.restype = None
    return library


def _compiled(source: Path, compiler: str) -> Path:
    capabilities = sorted(torch.cpu.get_capabilities().items())
    headers = {*HEADERS.glob("*.h"), *source.parent.glob("*.h")}
    texts = [path.read_text(encoding="utf-8") for path in (source, *sorted(headers))]
    key = f"{texts} {compiler} {_FLAGS} {capabilities}"
    name = f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.so"
    path = cache_folder() / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            draft = Path(folder) / name
            command = [compiler, *_FLAGS, f"-I{HEADERS}", str(source), "-lm", "-o", str(draft)]
            subprocess.run(command, check=True, capture_output=True)
            draft.replace(path)
    return path
