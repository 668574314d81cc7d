"""How `marslm distill` looks while it goes on, and its report.

Knows nothing about how prompts and answers are written.
"""

from __future__ import annotations

from marslm.cli.progress import FactsBar, answering_facts
from marslm.cli.render import console
from marslm.distill.job import DistillReport, Event, PromptProgress


class DistillView(FactsBar):
    """Renders events."""

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, PromptProgress):
            done, total, label = event.kept, event.wanted, "prompts"
        else:
            done, total, label = event.done, event.total, "answers"
        facts = answering_facts(done, total, event.tokens, event.seconds, event.seconds_left)
        if isinstance(event, PromptProgress) and event.dropped:
            facts += f", {event.dropped} dropped"
        self.show(label, done / max(1, total), facts)

    def show_report(self, report: DistillReport) -> None:
        """Say what the file holds and what was dropped."""
        self.hide()
        console.print(f"{report.rows} rows, {report.tokens} tokens, {report.cut} cut at the limit")
        for what, reasons in (
            ("self-written prompts", report.prompts_dropped),
            ("prompts", report.answers_dropped),
        ):
            if reasons:
                parts = ", ".join(f"{count} {why}" for why, count in reasons.most_common())
                console.print(f"dropped of the {what}: {parts}")
        speed = report.new_tokens / max(1e-9, report.seconds)
        console.print(
            f"this run wrote {report.new_tokens} tokens in {report.seconds:.0f} s: "
            f"{speed:.0f} tokens/s"
        )
