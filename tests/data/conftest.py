"""A tokenizer whose padding is its end of turn, and files to read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from marslm.models.tiny import build_tokenizer

WriteRows = Callable[[str, Sequence[object]], str]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer()
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    return tokenizer


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """Write rows as JSON lines, compressed when the name ends in .gz, and return the path."""

    def write(name: str, rows: Sequence[object]) -> str:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write
