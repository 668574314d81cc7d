"""How a tuning run looks while it goes on.

Knows nothing about what the events mean to the run.
"""

from __future__ import annotations

from rich.panel import Panel
from rich.text import Text

from marslm.cli.progress import FactsBar, answering_facts, time_left
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


class TuneView(FactsBar):
    """Renders events."""

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
            self.hide()
            print_rows([r.row() for r in event.results], _RESULT_COLUMNS, "held-out prompts")

    def _show_answering(self, event: AnswerProgress) -> None:
        facts = answering_facts(
            event.done, event.total, event.tokens, event.seconds, event.seconds_left
        )
        self.show("answering", event.done / event.total, facts)

    def _show_data(self, event: DataReady) -> None:
        console.print(
            f"{event.examples} examples, {event.tokens} tokens, {event.supervised_tokens} of them "
            f"supervised; rows dropped: {_reasons(event.dropped)}; {event.held_out} held out"
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
            f"{event.tokens_per_second:.0f} tok/s {time_left(event.seconds_left)}"
        )
        self.show("training", event.fraction, facts)


def _reasons(dropped: dict[str, int]) -> str:
    found = [f"{count} ({reason})" for reason, count in dropped.items() if count]
    return ", ".join(found) or "none"
