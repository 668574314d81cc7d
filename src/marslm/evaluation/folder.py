"""A folder of results: what was run, every answer, every scored item.

`config.json`, and for each decoding mode a folder with `answers.jsonl` (as they came) and one file
of items a benchmark. Knows nothing about how items come about or are compared.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marslm import files
from marslm.errors import InputError
from marslm.evaluation.answer_file import AnswerFile
from marslm.evaluation.items import Item
from marslm.report import describe_machine
from marslm.rows_file import read_rows

CONFIG = "config.json"
_ANSWERS = "answers.jsonl"


class ResultsFolder:
    """Results under one path; several runs of the same evaluation share it."""

    def __init__(self, path: Path) -> None:
        """Nothing is read or made yet."""
        self.path = path

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Note what is run; InputError if the folder holds results of something else.

        identity: everything that answers depend on but the decoding mode.
        """
        config = self._read_config()
        for key, value in identity.items():
            before = config.get("identity", identity).get(key)
            if before != value:
                raise InputError(
                    f"{self.path} holds results with {key} {before}, not {value}: name another "
                    "--output, or delete it"
                )
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        commands = dict.fromkeys([*config.get("commands", []), command])
        config = {
            "identity": dict(identity),
            "machine": describe_machine(),
            "commands": list(commands),
        }
        files.write_text(self.path / CONFIG, json.dumps(config, indent=1) + "\n")

    def answers(self, mode: str) -> AnswerFile:
        """Return the answers of a decoding mode, those of earlier runs among them."""
        return AnswerFile(self.path / mode / _ANSWERS)

    def write_items(self, mode: str, benchmark: str, items: Sequence[Item]) -> None:
        """Keep the scored items of a benchmark."""
        lines = [json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items]
        files.write_text(self.path / mode / f"{benchmark}.jsonl", "".join(lines))

    def _read_config(self) -> dict[str, Any]:
        path = self.path / CONFIG
        if not path.exists():
            return {}
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            assert isinstance(config["identity"], dict)
        except (ValueError, KeyError, AssertionError) as error:
            raise InputError(f"{path} is damaged: name another --output, or delete it") from error
        return config


def read_items(folder: Path) -> dict[str, list[Item]]:
    """Return the items of a mode's folder by benchmark; InputError if there are none.

    The folder of a whole evaluation stands for its mode if it has only one.
    """
    modes = sorted(path.parent.name for path in folder.glob(f"*/{_ANSWERS}"))
    if len(modes) == 1:
        folder = folder / modes[0]
    found = {
        path.stem: [Item(**row) for row in read_rows(path, "id", "answer", "score")]
        for path in sorted(folder.glob("*.jsonl"))
        if path.name != _ANSWERS
    }
    if not found:
        advice = f"name one of its modes, as {folder / modes[0]}" if modes else "run marslm eval"
        raise InputError(f"{folder} holds no results of a decoding mode: {advice}")
    return found
