"""How results look in a terminal: accepted runs in colour, tables of figures.

Knows nothing about how results come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marslm.report import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from marslm.engine.api import Answer
    from marslm.engine.engine import StepEvent
    from marslm.runtime.logprobs import TokenLogprobs

console = Console(highlight=False)

_RUN_STYLES = ("bold cyan", "bold magenta", "bold green", "bold yellow")


class RunPainter:
    """Gives each run of several tokens the next colour; single tokens stay plain."""

    def __init__(self) -> None:
        """Start with the first colour."""
        self._styles = cycle(_RUN_STYLES)

    def paint(self, event: StepEvent) -> Text:
        """Return a step's text, coloured if it brought several tokens."""
        return Text(event.text, style=self.next_style(len(event.tokens)))

    def next_style(self, tokens: int) -> str:
        """Return the style of a run of so many tokens."""
        return next(self._styles) if tokens > 1 else ""

    def print(self, event: StepEvent) -> None:
        """Write a step's text at once, as it comes."""
        console.print(self.paint(event), end="", soft_wrap=True)


def logprobs_table(tokenizer: PreTrainedTokenizerBase, logprobs: Sequence[TokenLogprobs]) -> Table:
    """Return a table of tokens, their log-probabilities and the likeliest at their places."""
    table = Table("token", "log-probability", "likeliest")

    def shown(token: int) -> str:
        return repr(tokenizer.decode([token]))

    for each in logprobs:
        likeliest = "  ".join(f"{shown(token)} {logprob:.3f}" for token, logprob in each.top)
        table.add_row(Text(shown(each.token)), f"{each.logprob:.3f}", Text(likeliest))
    return table


def paint_answer(tokenizer: PreTrainedTokenizerBase, answer: Answer) -> Text:
    """Return a finished answer's text, each run of several tokens in its own colour."""
    from marslm.runtime.detokenize import Detokenizer

    painter, detokenizer = RunPainter(), Detokenizer(tokenizer)
    painted, start = Text(), 0
    for run in answer.runs:
        piece = detokenizer.add(answer.ids[start : start + run])
        painted.append(piece, style=painter.next_style(run))
        start += run
    return painted.append(detokenizer.finish())


def figures(tokens: int, forwards: int, tokens_per_second: float | None) -> str:
    """Return one line: tokens, forwards, tokens per forward, tokens/s."""
    speed = "" if tokens_per_second is None else f", {tokens_per_second:.1f} tokens/s"
    per_forward = tokens / max(1, forwards)
    return f"{tokens} tokens in {forwards} forwards = {per_forward:.2f} tokens per forward{speed}"


def print_rows(rows: Sequence[Row], columns: Sequence[str], title: str | None = None) -> None:
    """Print the named columns of `rows` as a table; empty columns are left out."""
    shown = [column for column in columns if any(row.get(column) is not None for row in rows)]
    table = Table(
        title=title,
        title_justify="left",
        header_style="bold underline",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    for column in shown:
        label = _LABELS.get(column, column.replace("_", " "))
        table.add_column(label, justify="left" if column in _TEXT else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in shown))
    console.print(table)


_TEXT = ("task", "strategy", "kind")

_LABELS = {
    "tokens_per_forward": "tok/fwd",
    "rows_per_forward": "rows/fwd",
    "tokens_per_second": "tok/s",
    "seconds_per_forward": "s/fwd",
    "speed_ratio": "speed",
    "forwards": "fwds",
    "identical_to_ar": "= ar",
    "agreement": "agree",
    "accuracy": "right",
}


def _cell(value: str | int | float | bool | None) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
