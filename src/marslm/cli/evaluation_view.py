"""How an evaluation looks: tables of scores, and items that flipped, side by side.

Knows nothing about how items are scored or compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from marslm.cli.render import console, print_rows

if TYPE_CHECKING:
    from marslm.evaluation.compare import Flip
    from marslm.evaluation.items import Item
    from marslm.report import Row

_QUESTION_END = 400
"""Characters of a prompt that are shown: its end, where the question is."""

_TARGET = 80
"""Characters of a target that are shown: it may be a whole test."""


_COLUMNS = (
    "task",
    "strategy",
    "tau",
    "block",
    "score",
    "interval",
    "n",
    "difference",
    "its_interval",
    "identical",
    "tokens_per_forward",
    "truncated",
    "seconds",
)


_COMPARED = (
    *("task", "n", "left", "right", "difference", "its_interval"),
    *("gained", "lost", "identical"),
)


def print_scores(rows: Sequence[Row]) -> None:
    """Show the rows of an evaluation."""
    print_rows([_for_the_eye(row) for row in rows], _COLUMNS)


def print_comparison(rows: Sequence[Row]) -> None:
    """Show the rows of a comparison."""
    print_rows([_for_the_eye(row) for row in rows], _COMPARED)


def _for_the_eye(row: Row) -> Row:
    """Return a row with its intervals in one column each."""
    intervals = {"interval": _interval(row, "score"), "its_interval": _interval(row, "difference")}
    return {**row, **intervals}


def _interval(row: Row, name: str) -> str | None:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return None if low is None else f"{low:.3g}..{high:.3g}"


def print_flip(flip: Flip) -> None:
    """Show one item; texts are shown as they are, whatever marks they hold."""
    sides = Table.grid(expand=True)
    sides.add_column(ratio=1)
    sides.add_column(ratio=1)
    sides.add_row(_answer("A", flip.left), _answer("B", flip.right))
    console.print(Text(f"\n{flip.left.id}, target {flip.left.target[:_TARGET]!r}", style="bold"))
    console.print(Text(flip.left.prompt[-_QUESTION_END:]))
    console.print(sides)


def _answer(name: str, item: Item) -> Panel:
    extracted = f"\n\n-> {item.extracted}" if item.extracted != item.answer else ""
    return Panel(
        Text(item.answer + extracted),
        title=f"{name}: {item.score:g}",
        subtitle=f"{item.tokens} tokens, {item.forwards} forwards, {item.finish_reason}",
        border_style="green" if item.score > 0 else "red",
    )
