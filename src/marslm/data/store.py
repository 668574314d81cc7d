"""Examples on disk: encoded once, then mapped into memory by every process that trains on them.

Millions of examples do not fit into Python objects, and encoding them again for each process or
run takes longer than it should. Knows nothing about where the examples come from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import overload

import numpy as np

from marslm import files
from marslm.data.encode import EncodeReport, Example

_IDS, _SUPERVISED, _ENDS, _FACTS = "ids.bin", "supervised.bin", "ends.npy", "facts.json"


class TokenStore(Sequence[Example]):
    """Read-only examples in a folder that `write_store` made.

    lengths, targets: tokens and supervised tokens of each example, int64 [n]. digest: a mark of the
    contents. report: what became of the rows. prompts: the prompts that were held out.
    """

    def __init__(self, folder: Path) -> None:
        """Map the files; nothing is read until it is asked for."""
        self._ids = np.memmap(folder / _IDS, dtype=np.uint32, mode="r")
        self._supervised = np.memmap(folder / _SUPERVISED, dtype=np.bool_, mode="r")
        ends = np.load(folder / _ENDS)
        self._ends = ends[0]
        self.lengths = np.diff(ends[0], prepend=0)
        self.targets = ends[1]
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        self.digest: str = facts["digest"]
        self.report = EncodeReport(**facts["report"])
        self.prompts: list[list[int]] = facts["prompts"]

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        """Return one example, or those of a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        end = int(self._ends[index])
        span = slice(end - int(self.lengths[index]), end)
        ids, supervised = self._ids[span].tolist(), self._supervised[span].tolist()
        return Example(tuple(ids), tuple(supervised), f"stored:{index + 1}")


def write_store(
    folder: Path,
    examples: Iterable[Example],
    *,
    report: EncodeReport,
    prompts: Sequence[Sequence[int]],
) -> TokenStore:
    """Write `examples` as they come, and what is known of them at the end; return them opened.

    report and prompts may grow while `examples` are drawn: they are read last.
    """
    ends: list[int] = []
    targets: list[int] = []
    digest, end = hashlib.sha256(), 0
    with files.new_folder(folder) as draft:
        with (draft / _IDS).open("wb") as ids, (draft / _SUPERVISED).open("wb") as supervised:
            for example in examples:
                tokens = np.array(example.ids, dtype=np.uint32).tobytes()
                wanted = np.array(example.supervised, dtype=np.bool_).tobytes()
                ids.write(tokens)
                supervised.write(wanted)
                digest.update(tokens + wanted)
                end += len(example.ids)
                ends.append(end)
                targets.append(sum(example.supervised))
        np.save(draft / _ENDS, np.array([ends, targets], dtype=np.int64))
        facts = {
            "digest": digest.hexdigest()[:16],
            "report": asdict(report),
            "prompts": [list(prompt) for prompt in prompts],
        }
        files.write_text(draft / _FACTS, json.dumps(facts))
    return TokenStore(folder)
