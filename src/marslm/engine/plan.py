"""One request's part in a step.

Knows nothing about schedules or forwards.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window
from marslm.runtime.work import Work
from marslm.strategies.base import StepSettings, Strategy


@dataclass
class Plan:
    """Pending tokens, then the window once they are whole."""

    sequence: Sequence
    chunk: list[int]
    strategy: Strategy
    settings: StepSettings
    window: Window = field(default_factory=Window)

    @property
    def whole(self) -> bool:
        """Whether all pending tokens are fed, so that the step brings a token."""
        return self.sequence.num_cached + len(self.chunk) == len(self.sequence.tokens)

    @property
    def work(self) -> Work:
        """What the runner is given."""
        sequence, wanted = self.sequence, 1 + len(self.window) if self.whole else 0
        assert sequence.slot is not None
        return Work(sequence.slot, sequence.num_cached, self.chunk, self.window, wanted)


def add_windows(plans: ListOf[Plan], max_length: int) -> None:
    """Ask each strategy for the windows of its requests, all at once.

    They are cut where a request's text would pass `max_length`.
    """
    for strategy in dict.fromkeys(plan.strategy for plan in plans):
        mine = [plan for plan in plans if plan.strategy is strategy]
        windows = strategy.propose(
            [plan.sequence for plan in mine], [plan.settings for plan in mine]
        )
        for plan, window in zip(mine, windows, strict=True):
            plan.window = window.cut(max_length - len(plan.sequence.tokens))
