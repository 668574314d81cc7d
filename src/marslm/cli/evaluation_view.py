"""How an item that flipped looks: its question, and both answers side by side.

Knows nothing about how items are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from marslm.cli.render import console

if TYPE_CHECKING:
    from marslm.evaluation.compare import Flip
    from marslm.evaluation.items import Item

_QUESTION_END = 400
"""Characters of a prompt that are shown: its end, where the question is."""

_TARGET = 80
"""Characters of a target that are shown: it may be a whole test."""


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
