"""From examples to training batches: which examples, in what order, masked where.

Every visit of an example draws its blocks from (seed, visit, index) alone, so a resumed run, or one
with other workers or ranks, sees the same masks. Knows nothing about models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from marslm.core.losses import IGNORE, right_shift_targets
from marslm.core.streams import (
    PADDING,
    Rows,
    block_anchors,
    clean_rows,
    mask_rows,
    masks_per_anchor,
    possible_anchors,
)
from marslm.data.encode import Example
from marslm.train.config import TuneConfig

Visit: TypeAlias = "tuple[int, int]"
"""(pass over the data, index of the example)."""

Item: TypeAlias = "dict[str, Any]"


class TwoStreamData(Dataset[Item]):
    """Examples as two streams: the clean text and its masked blocks."""

    def __init__(self, examples: Sequence[Example], config: TuneConfig) -> None:
        """Keep the examples; nothing is drawn until they are asked for."""
        self._examples = examples
        self._config = config

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def digest(self) -> str:
        """A mark of the examples: the same data give the same one."""
        ids = [example.ids for example in self._examples]
        return hashlib.sha256(repr(ids).encode()).hexdigest()[:16]

    @property
    def lengths(self) -> list[int]:
        """Clean tokens of each example."""
        return [len(example.ids) for example in self._examples]

    def __getitem__(self, visit: Visit) -> Item:
        """Return rows and targets of one example: clean [L], noisy [N], and which rows are anchors.

        first: whether a clean row is the anchor of a block, so that it reads its first candidate.
        """
        number, index = visit
        example, config = self._examples[index], self._config
        ids, supervised = torch.tensor(example.ids), torch.tensor(example.supervised)
        anchors = self._anchors(supervised, number, index)
        clean = clean_rows(len(ids))
        noisy = mask_rows(anchors, masks_per_anchor(supervised, anchors, config.block_size))
        first = torch.zeros(len(ids), dtype=torch.bool)
        first[anchors] = True
        return {
            "ids": ids,
            "first": first,
            "clean": clean,
            "noisy": noisy,
            "clean_targets": right_shift_targets(clean.position, ids, supervised),
            "noisy_targets": right_shift_targets(noisy.position, ids, supervised),
        }

    def _anchors(self, supervised: Tensor, number: int, index: int) -> Tensor:
        if self._config.anchors is None:
            return block_anchors(supervised, self._config.block_size)
        candidates = possible_anchors(supervised)
        key = hash((self._config.seed, number, index)) % 2**63
        order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(key))
        return candidates[order[: self._config.anchors]].sort().values


class EndlessVisits(Sampler[Visit]):
    """Visits in shuffled passes, neighbours in a batch of like length so that little is padded.

    A pass leaves out what does not fill a batch, other examples each time.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, visits: int, seed: int) -> None:
        """`visits`: how many there are in all."""
        self._lengths = lengths
        self._batch_size = batch_size
        self._visits = visits
        self._seed = seed

    def __len__(self) -> int:
        return self._visits

    def __iter__(self) -> Iterator[Visit]:
        given = number = 0
        while True:
            for index in self._one_pass(number):
                if given == self._visits:
                    return
                yield number, index
                given += 1
            number += 1

    def _one_pass(self, number: int) -> list[int]:
        """Return all indices: shuffled, sorted by length within stretches, batches shuffled."""
        generator = torch.Generator().manual_seed(hash((self._seed, number)) % 2**63)
        order = torch.randperm(len(self._lengths), generator=generator).tolist()
        size = self._batch_size
        if len(order) > size:
            # A short batch would shift all later ones across groups; others sit out each pass.
            order = order[: len(order) // size * size]
        stretches = [order[i : i + 16 * size] for i in range(0, len(order), 16 * size)]
        by_length = [i for s in stretches for i in sorted(s, key=self._lengths.__getitem__)]
        batches = [by_length[i : i + size] for i in range(0, len(by_length), size)]
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        return [index for batch in shuffled for index in batches[batch]]


def collate(items: Sequence[Item]) -> Item:
    """Pad items to one batch [B, L] and [B, N]; rows become dicts, which the Trainer can move.

    Padding rows belong to no text, predict nothing and start no block.
    """
    return {
        "ids": _pad([item["ids"] for item in items], 0),
        "first": _pad([item["first"] for item in items], 0),
        "clean": _pad_rows([item["clean"] for item in items]),
        "noisy": _pad_rows([item["noisy"] for item in items]),
        "clean_targets": _pad([item["clean_targets"] for item in items], IGNORE),
        "noisy_targets": _pad([item["noisy_targets"] for item in items], IGNORE),
    }


def _pad_rows(streams: Sequence[Rows]) -> dict[str, Tensor]:
    fill = {"document": PADDING}
    return {
        field.name: _pad([getattr(s, field.name) for s in streams], fill.get(field.name, 0))
        for field in fields(Rows)
    }


def _pad(tensors: list[Tensor], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
