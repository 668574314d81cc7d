"""Which examples a run sees, in what order, and which share a sequence.

Everything follows from (seed, visit), so a resumed run, or one with other workers or ranks, sees
the same. Knows nothing about what is in an example beyond its length.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.data import Sampler


class Visit(NamedTuple):
    """One look at one sequence. number: the pass over the data. step: the optimiser step."""

    number: int
    sequence: int
    step: int = 0


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
                yield Visit(number, index, given // self._batch_size)
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


def fill_sequences(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Return groups of examples that fit into `room` tokens: best fit, the longest first."""
    groups: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # the keys of by_room, ascending
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = bisect_left(rooms, lengths[index])
        if place < len(rooms):
            free = rooms[place]
            number = by_room[free].pop()
            if not by_room[free]:
                del by_room[free], rooms[place]
        else:
            free, number = room, len(groups)
            groups.append([])
        groups[number].append(index)
        left = free - lengths[index]
        if left not in by_room:
            by_room[left] = []
            insort(rooms, left)
        by_room[left].append(number)
    return groups
