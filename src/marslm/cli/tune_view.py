"""How a tuning run looks while it goes on.

Knows nothing about what the events mean to the run.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from marslm.cli.render import console, print_rows
from marslm.data.encode import mark_supervised
from marslm.distill.answers import AnswerProgress
from marslm.train.events import Event as TrainEvent
from marslm.train.events import Progress as TrainProgress
from marslm.train.events import Saved
from marslm.tuning.tune import DataReady, Event, Measured

_RESULT_COLUMNS = (
    "strategy",
    "tau",
    "tokens",
    "forwards",
    "tokens_per_forward",
    "identical_to_ar",
)


_SECONDS_BETWEEN_LINES = 30.0


class TuneView:
    """Renders events; a context manager, so that the bar is closed whatever happens."""

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

    def __enter__(self) -> TuneView:
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

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, AnswerProgress):
            self._show_answering(event)
        elif isinstance(event, DataReady):
            self._show_data(event)
        elif isinstance(event, TrainProgress):
            self.show_progress(event)
        elif isinstance(event, Saved):
            console.print(f"[dim]step {event.step}: checkpoint {event.folder}[/dim]")
        elif isinstance(event, Measured):
            self._bar.update(self._task, visible=False)
            print_rows([r.row() for r in event.results], _RESULT_COLUMNS, "held-out prompts")

    def _update(self, label: str, fraction: float, facts: str) -> None:
        if not console.is_terminal:
            self._print_now_and_then(f"{label} {fraction:.0%}  {facts}")
        self._bar.update(
            self._task, description=label, completed=fraction, facts=facts, visible=True
        )

    def _print_now_and_then(self, line: str) -> None:
        """Print progress as lines where a bar would not show: in a log file or a pipe."""
        if time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            console.print(line, soft_wrap=True)

    def _show_answering(self, event: AnswerProgress) -> None:
        rate = event.tokens / max(1e-9, event.seconds)
        facts = f"{event.done}/{event.total}, {rate:.0f} tokens/s, {_left(event.seconds_left)}"
        self._update("answering", event.done / event.total, facts)

    def _show_data(self, event: DataReady) -> None:
        console.print(
            f"{event.examples} examples, {event.tokens} tokens, {event.supervised_tokens} of them "
            f"supervised; {event.dropped} rows dropped; {event.held_out} held out"
        )
        sample = Text()
        for text, supervised in mark_supervised(event.model.tokenizer, event.sample):
            sample.append(text, style="bold green" if supervised else "dim")
        title = "first example: [bold green]supervised[/] and [dim]not[/]"
        console.print(Panel(sample, title=title, title_align="left"))

    def show_progress(self, event: TrainEvent) -> None:
        """Move the bar to a step; other training events are not shown."""
        if not isinstance(event, TrainProgress):
            return
        measured = [accuracy for accuracy in event.accuracy if accuracy is not None]
        right = "/".join(f"{100 * accuracy:.0f}" for accuracy in measured[:4])
        facts = (
            f"step {event.step} loss {event.loss:.2f} right {right}% "
            f"{event.tokens_per_second:.0f} tok/s {_left(event.seconds_left)}"
        )
        self._update("training", event.fraction, facts)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"
