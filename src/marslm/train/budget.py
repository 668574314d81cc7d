"""How far a run has come: by steps, or by minutes of training time.

The learning rate follows this fraction, so that a run of so many minutes decays to zero just as one
of so many steps does. Time already used is part of a checkpoint. Knows nothing about losses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

UNBOUNDED_STEPS = 1_000_000
"""Steps that the Trainer is told when minutes end the run."""


class Budget(TrainerCallback):
    """Ends the run when it is used up."""

    def __init__(self, steps: int | None, minutes: float | None) -> None:
        """Give either."""
        self._steps = steps
        self._seconds = None if minutes is None else minutes * 60
        self._used = 0.0
        self._started: float | None = None
        self._agree: Callable[[float], float] | None = None
        self._agreed = 0.0

    @property
    def max_steps(self) -> int:
        """The steps to tell the Trainer."""
        return self._steps or UNBOUNDED_STEPS

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, over all parts of the run."""
        running = 0.0 if self._started is None else time.monotonic() - self._started
        return self._used + running

    @property
    def started_at(self) -> float:
        """Seconds that earlier parts of the run took."""
        return self._used

    @property
    def shared_elapsed(self) -> float:
        """`elapsed` as all processes know it: one clock, read after each step."""
        return self.elapsed if self._agree is None else self._agreed

    def share_clock(self, agree: Callable[[float], float]) -> None:
        """Follow the first process' clock; `agree` returns that process' value on every one.

        Processes that end, save or lower the learning rate at different steps would wait for one
        another for ever, or train different weights.
        """
        self._agree = agree

    def fraction(self, step: int) -> float:
        """Return how much of the budget is used after `step` steps, in [0, 1]."""
        if self._seconds is None:
            return min(1.0, step / self.max_steps)
        return min(1.0, self.shared_elapsed / self._seconds)

    def seconds_left(self, step: int) -> float | None:
        """Return an estimate of the time left, None before the first step."""
        used = self.fraction(step)
        return self.elapsed * (1 - used) / used if used > 0 and step > 0 else None

    def learning_rate_factor(self, step: int, warmup: float) -> float:
        """Return the cosine schedule with linear warm-up over the share `warmup`, in [0, 1]."""
        used = self.fraction(step)
        if used < warmup:
            # The first step would otherwise train nothing.
            return max(used, 1e-3) / warmup
        return 0.5 * (1 + math.cos(math.pi * (used - warmup) / (1 - warmup)))

    def continue_from(self, used: float) -> None:
        """Count `used` seconds that an earlier part of the run took."""
        self._used = self._agreed = used

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the clock; a finished run that is resumed with a larger budget goes on."""
        self._started = time.monotonic()
        control.should_training_stop = False

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Read the clock for all processes, before the learning rate is set."""
        if self._agree is not None:
            self._agreed = self._agree(self.elapsed)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Stop when the time is used up."""
        if self.fraction(state.global_step) >= 1:
            control.should_training_stop = True
            control.should_save = True
