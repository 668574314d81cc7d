"""Progress bars for long work.

Knows nothing about the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from marslm.cli.render import console

if TYPE_CHECKING:
    from typing_extensions import Self


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield a function that sets how much is done."""
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


_SECONDS_BETWEEN_LINES = 30.0


class FactsBar:
    """One line about the work: what is going on, a short bar, facts in words.

    A context manager, so that the bar is closed whatever happens. In a log file or a pipe, where a
    bar would not show, it prints a line now and then.
    """

    def __init__(self) -> None:
        """Prepare the bar; it appears with the first progress."""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=6),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[facts]}"),
            console=console,
        )
        self._last_line = float("-inf")
        self._task = self._bar.add_task("", total=1.0, facts="", visible=False)

    def __enter__(self) -> Self:
        """Start the bar."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the bar."""
        self._bar.stop()

    def show(self, label: str, fraction: float, facts: str) -> None:
        """Move the bar."""
        if not console.is_terminal and time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            console.print(f"{label} {fraction:.0%}  {facts}", soft_wrap=True)
        self._bar.update(
            self._task, description=label, completed=fraction, facts=facts, visible=True
        )

    def hide(self) -> None:
        """Take the bar away, before a result is printed."""
        self._bar.update(self._task, visible=False)


def time_left(seconds: float | None) -> str:
    """Return an estimate for people, empty if there is none."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"


def answering_facts(done: int, total: int, tokens: int, seconds: float, left: float | None) -> str:
    """Return what to say while texts are written."""
    return f"{done}/{total}, {tokens / max(1e-9, seconds):.0f} tokens/s, {time_left(left)}"
