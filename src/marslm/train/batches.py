"""From examples to training batches: rows and targets of each visit, padded together.

Every visit of an example draws its blocks from (seed, visit, index) alone, so a resumed run, or one
with other workers or ranks, sees the same masks. Knows nothing about models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor
from torch.utils.data import Dataset

from marslm.core.losses import IGNORE
from marslm.core.streams import PADDING, Rows
from marslm.data.encode import Example
from marslm.data.store import TokenStore
from marslm.train.config import TuneConfig
from marslm.train.streams import HIDDEN, Item, choose_anchors, pack, two_streams
from marslm.train.visits import Visit, fill_sequences


class TwoStreamData(Dataset[Item]):
    """Examples as two streams: the clean text and its masked blocks.

    With packing an index names several examples that share one sequence.
    """

    def __init__(self, examples: Sequence[Example], config: TuneConfig) -> None:
        """Keep the examples; nothing is drawn until they are asked for."""
        self._examples = examples
        self._config = config
        lengths, targets = _sizes(examples)
        # An answer of one token has no place for a mask.
        least = 2 if config.mode in ("mask-only", "medusa") else 1
        useful = [index for index, count in enumerate(targets) if count >= least]
        self._groups = [[index] for index in useful]
        if config.packing:
            packed = fill_sequences([lengths[index] for index in useful], config.max_length)
            self._groups = [[useful[place] for place in group] for group in packed]
        self.lengths = [sum(lengths[i] for i in group) for group in self._groups]
        """Clean tokens of each sequence."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def digest(self) -> str:
        """A mark of the examples: the same data give the same one."""
        if isinstance(self._examples, TokenStore):
            return self._examples.digest
        contents = [(example.ids, example.supervised) for example in self._examples]
        return hashlib.sha256(repr(contents).encode()).hexdigest()[:16]

    def __getitem__(self, visit: tuple[int, ...]) -> Item:
        """Return rows and targets of one sequence; see `streams.two_streams`."""
        visit = Visit(*visit)
        items = [self._item(index, visit) for index in self._groups[visit.sequence]]
        return items[0] if len(items) == 1 else pack(items)

    def _item(self, index: int, visit: Visit) -> Item:
        config, example = self._config, self._examples[index]
        key = hash((config.seed, visit.number, index)) % 2**63
        draw = torch.Generator().manual_seed(key)
        if config.objective in ("ar", "medusa"):
            none = torch.zeros(0, dtype=torch.int64)
            return two_streams(example, none, config.block_size, config.form, draw)
        block_size = self._block_size(visit.step, draw)
        anchors = choose_anchors(example, block_size, config.anchors, draw)
        return two_streams(example, anchors, block_size, config.form, draw)

    def _block_size(self, step: int, draw: torch.Generator) -> int:
        """Return the B of one visit: the whole one, or what curriculum and random window leave."""
        config, largest = self._config, self._config.block_size
        if config.curriculum and config.steps:
            grown = min(1.0, step / (config.curriculum * config.steps))
            largest = 2 + round((largest - 2) * grown)
        if config.random_window:
            return int(torch.randint(2, largest + 1, (), generator=draw))
        return largest


def _sizes(examples: Sequence[Example]) -> tuple[list[int], list[int]]:
    """Return each example's tokens and supervised tokens."""
    if isinstance(examples, TokenStore):
        return examples.lengths.tolist(), examples.targets.tolist()
    return [len(e.ids) for e in examples], [sum(e.supervised) for e in examples]


def collate(items: Sequence[Item], *, multiple: int = 1) -> Item:
    """Pad items to one batch [B, L] and [B, N]; rows become dicts, which the Trainer can move.

    Padding rows belong to no text, predict nothing and start no block. multiple: what L and N are
    rounded up to, so that there are few shapes.
    """
    return {
        name: _pad_rows([item[name] for item in items], multiple)
        if name in ("clean", "noisy")
        else _pad([item[name] for item in items], _FILL.get(name, 0), multiple)
        for name in items[0]
    }


_FILL = {"noisy_ids": HIDDEN, "clean_targets": IGNORE, "noisy_targets": IGNORE}


def _pad_rows(streams: Sequence[Rows], multiple: int) -> dict[str, Tensor]:
    fill = {"document": PADDING}
    return {
        field.name: _pad(
            [getattr(s, field.name) for s in streams], fill.get(field.name, 0), multiple
        )
        for field in fields(Rows)
    }


def _pad(tensors: list[Tensor], value: int, multiple: int) -> Tensor:
    padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
    return torch.nn.functional.pad(padded, (0, -padded.shape[1] % multiple), value=value)
