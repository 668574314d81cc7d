"""Two modes item by item: which answers are the same, which items flipped.

Knows nothing about where the items come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marslm.errors import InputError
from marslm.evaluation.items import Item
from marslm.evaluation.statistics import difference
from marslm.report import Row


@dataclass(frozen=True)
class Flip:
    """An item that the two score differently."""

    task: str
    left: Item
    right: Item


def compare(
    left: Mapping[str, Sequence[Item]], right: Mapping[str, Sequence[Item]]
) -> tuple[list[Row], list[Flip]]:
    """Return a row for each task that both have, and the items that flipped, over shared items.

    Raises InputError if they share none.
    """
    rows: list[Row] = []
    flips: list[Flip] = []
    for task in (name for name in left if name in right):
        others = {item.id: item for item in right[task]}
        pairs = [(item, others[item.id]) for item in left[task] if item.id in others]
        if pairs:
            rows.append({"task": task, **_row(pairs)})
            flips += [Flip(task, a, b) for a, b in pairs if a.score != b.score]
    if not rows:
        raise InputError("the two share no item: compare runs of the same tasks and seed")
    return rows, flips


def _row(pairs: Sequence[tuple[Item, Item]]) -> dict[str, float | int]:
    lefts, rights = [a.score for a, _ in pairs], [b.score for _, b in pairs]
    gap = difference(rights, lefts)
    return {
        "n": len(pairs),
        "left": sum(lefts) / len(pairs),
        "right": sum(rights) / len(pairs),
        "difference": gap.mean,
        "difference_low": gap.low,
        "difference_high": gap.high,
        "lost": sum(a.score > b.score for a, b in pairs),
        "gained": sum(a.score < b.score for a, b in pairs),
        "identical": sum(a.answer == b.answer for a, b in pairs) / len(pairs),
    }
