"""The answers of one decoding mode, kept as they come, so that a stopped evaluation goes on.

An answer is found again by its prompt and its sampling parameters. Knows nothing about benchmarks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path

from marslm.evaluation.answering import Generation, Request
from marslm.rows_file import append_row, read_rows

_FIELDS = tuple(field.name for field in fields(Generation))


class AnswerFile:
    """Answers by request, in memory and, given a path, in a file of one row an answer."""

    def __init__(self, path: Path | None = None) -> None:
        """Read what is there; InputError for a damaged file."""
        self._path = path
        rows = read_rows(path, "key", *_FIELDS) if path else []
        self._answers = {
            row["key"]: Generation(**{name: row[name] for name in _FIELDS}) for row in rows
        }

    def get(self, request: Request) -> Generation | None:
        """Return the answer to a request, None if it was not answered yet."""
        return self._answers.get(_key(request))

    def put(self, request: Request, generation: Generation) -> None:
        """Keep an answer."""
        key = _key(request)
        self._answers[key] = generation
        if self._path is not None:
            append_row(self._path, {"key": key, **asdict(generation)})


def _key(request: Request) -> str:
    parts = json.dumps([request.prompt, asdict(request.params)], default=str, sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()
