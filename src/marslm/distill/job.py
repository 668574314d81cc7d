"""What a run of `marslm distill` is asked for, how far it is, and what came of it.

Knows nothing about how texts are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from marslm.distill.answers import AnswerProgress
from marslm.errors import InputError


@dataclass(frozen=True)
class PromptProgress:
    """How many self-written prompts there are; tokens, seconds and new are of this run alone."""

    kept: int
    wanted: int
    dropped: int
    tokens: int
    seconds: float
    new: int

    @property
    def seconds_left(self) -> float | None:
        """An estimate, None before the first prompt of this run."""
        return self.seconds / self.new * (self.wanted - self.kept) if self.new else None


Event: TypeAlias = "PromptProgress | AnswerProgress"
Listener: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True)
class DistillJob:
    """What to write.

    model: its name, kept in each row. prompts: a file or Hub data set, of which `rows` are used.
    self_prompts: how many prompts the model writes itself. exclude: files whose prompts, and what
    comes near them, are left out. max_length: tokens of prompt and answer together.
    """

    model: str
    output: Path
    prompts: str | None = None
    rows: int | None = None
    self_prompts: int = 0
    exclude: Sequence[str] = ()
    english: bool = True
    max_length: int = 512
    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for numbers that cannot be meant."""
        for name, least in (("self_prompts", 0), ("max_new_tokens", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}: give at least {least}")
        if self.prompts is None and not self.self_prompts:
            raise InputError("nothing to answer: give --prompts, --self-prompts, or both")
        if self.max_length <= self.max_new_tokens:
            raise InputError(
                f"max_length {self.max_length} leaves no room for a prompt before "
                f"{self.max_new_tokens} new tokens: raise it"
            )

    @property
    def prompts_file(self) -> Path:
        """Where attempts at self-written prompts are recorded."""
        return self.output.with_name(f"{self.output.stem}.prompts.jsonl")


@dataclass
class DistillReport:
    """What the file holds at the end, earlier runs included, and what was dropped and why.

    rows, tokens, cut: answers, their tokens, and how many hit the length limit. prompts_dropped:
    attempts at self-written prompts. answers_dropped: given prompts that are no rows. seconds and
    new_tokens: of this run alone, prompts included.
    """

    rows: int = 0
    tokens: int = 0
    cut: int = 0
    prompts_dropped: Counter[str] = field(default_factory=Counter)
    answers_dropped: Counter[str] = field(default_factory=Counter)
    new_tokens: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, str | int | float | bool | None]:
        """Return the report as one flat row."""
        reasons = {f"prompts_dropped_{why}": n for why, n in sorted(self.prompts_dropped.items())}
        reasons |= {f"answers_dropped_{why}": n for why, n in sorted(self.answers_dropped.items())}
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "cut": self.cut,
            **reasons,
            "new_tokens": self.new_tokens,
            "seconds": round(self.seconds, 1),
            "tokens_per_second": round(self.new_tokens / max(1e-9, self.seconds), 1),
        }
