"""Rows of a local file or a Hub data set, as they are read: mappings, each with its place.

A row that cannot be read stops the reading, and the error names its file and line. Knows nothing
about what rows hold.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeAlias, cast

from marslm.errors import InputError

Row: TypeAlias = Mapping[str, object]

FILE_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
ARITHMETIC = "arithmetic"
"""Name of the sums that need no file."""
HUB_NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w.-]+)(?::(?P<split>[\w.-]+))?")


def read_rows(source: str) -> Iterator[tuple[str, Row]]:
    """Yield (place, row) of a file or Hub data set, which is read no further than it is drawn."""
    path = Path(source).expanduser()
    if path.exists():
        yield from _file_rows(path)
        return
    if source == ARITHMETIC:
        yield from _sums()
        return
    hub = HUB_NAME.fullmatch(source)
    if hub is None or source.endswith((*FILE_SUFFIXES, ".gz")):
        raise InputError(f"{source}: no such file; {_advice(path)}")
    yield from _hub_rows(path, hub["name"], hub["split"] or "train")


def _sums() -> Iterator[tuple[str, Row]]:
    from marslm.data.arithmetic import NUMBERS, problems

    for number, problem in enumerate(problems(len(NUMBERS) ** 2, seed=0), 1):
        yield f"{ARITHMETIC}:{number}", {"question": problem.question, "answer": problem.answer}


def _advice(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    close = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    if close:
        return f"did you mean {path.parent / close[0]}?"
    return "check the path, or name a Hub data set as owner/name"


def _hub_rows(path: Path, name: str, split: str) -> Iterator[tuple[str, Row]]:
    try:
        from datasets import load_dataset

        stream = cast("Iterable[Row]", load_dataset(name, split=split, streaming=True))
        for number, row in enumerate(stream, 1):
            yield f"{name}:{split}:{number}", row
    except Exception as error:  # not installed, offline, gated, misnamed: the reason says which
        here = path.parent.is_dir()
        looks = f"looks like a missing file, {_advice(path)}" if here else "is not a file here"
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: {looks}; as a Hub data set, {name} split {split} cannot be read ({reason}): "
            "check the name and the network"
        ) from error


def _file_rows(path: Path) -> Iterator[tuple[str, Row]]:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name one {', '.join(FILE_SUFFIXES)} file in it")
    if not path.name.endswith(FILE_SUFFIXES):
        raise InputError(f"{path}: not read; convert it to one of {', '.join(FILE_SUFFIXES)}")
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        # utf-8-sig: some editors put a byte order mark first, which JSON does not allow.
        with _open(path) as file:
            yield from _list_rows(path, file) if path.suffix == ".json" else _lines(path, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: not whole gzip data ({error}); copy it anew, or drop .gz if it is plain text"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text; convert it to UTF-8") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path.name}:{number}", row
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: not whole Parquet data ({reason}); copy it anew") from error


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def _lines(path: Path, file: IO[str]) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield _placed(_parse(line.rstrip(), path, number), f"{path.name}:{number}")


def _list_rows(path: Path, file: IO[str]) -> Iterator[tuple[str, Row]]:
    text = file.read()
    found = _parse(text, path, 1) if text.strip() else []
    if not isinstance(found, list):
        raise InputError(f"{path}: not a JSON list; put the rows in a list, or name it .jsonl")
    for number, row in enumerate(found, 1):
        yield _placed(row, f"{path.name}:{number}")


def _parse(text: str, path: Path, line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        hint = "; one object a line belongs in a .jsonl file" if "Extra data" in error.msg else ""
        raise InputError(
            f"{path}:{line}: malformed JSON ({error.msg}, column {error.colno}){hint}; mend or "
            "delete it"
        ) from error


def _placed(found: object, where: str) -> tuple[str, Row]:
    if not isinstance(found, dict):
        raise InputError(f"{where}: a JSON {type(found).__name__}, not an object with a dialogue")
    return where, found
