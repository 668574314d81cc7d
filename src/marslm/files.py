"""Atomic writes: a reader sees the old file, the new file, or none, never a half.

Knows nothing about what is written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in one step, creating parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        _open_up(Path(name))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def is_writable_place(path: Path) -> bool:
    """Return whether `path` could be made: the nearest folder above it exists and is writable."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    return above.is_dir() and os.access(above, os.W_OK)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path`, replacing what is there, when the block succeeds.

    When the block raises, `path` is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield draft
        for each in (draft, *draft.rglob("*")):
            _open_up(each)
        if path.exists():
            # rename() cannot replace a folder that is not empty, so the old one steps aside first.
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
            path.replace(old / path.name)
            try:
                draft.replace(path)
            except BaseException:
                (old / path.name).replace(path)
                raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        else:
            draft.replace(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _open_up(path: Path) -> None:
    """Give `path` an ordinary new one's permissions; tempfile and safetensors make it private."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
