"""Sums of two-digit numbers with worked answers: the quick demo's task, made up on the spot.

The answers go column by column, so that each token follows from a few earlier ones and a tiny model
learns the rule in minutes; the fixed words between the digits are what several-token steps gain on.
Knows nothing about tokens, models or how an answer was decoded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from marslm.data.dialogues import Dialogue, Message
from marslm.errors import InputError

NUMBERS = range(10, 100)
# The full stop shows that the number is whole: an answer cut short can end in any digit.
RESULT = re.compile(r"total (\d+)\.\s*\Z")


@dataclass(frozen=True)
class Problem:
    """`question` as the user asks it, `answer` as it should be worked out, and the `result`."""

    question: str
    answer: str
    result: int

    @property
    def dialogue(self) -> Dialogue:
        """The problem as one question and one answer."""
        messages = Message("user", self.question), Message("assistant", self.answer)
        return Dialogue(messages, source=f"arithmetic: {self.question}")


def problems(count: int, *, seed: int, exclude: AbstractSet[str] = frozenset()) -> list[Problem]:
    """Return `count` different problems in random order, none with a question in `exclude`.

    Raises InputError when there are not that many.
    """
    sums = [(a, b) for a in NUMBERS for b in NUMBERS if _question(a, b) not in exclude]
    if not 0 <= count <= len(sums):
        raise InputError(f"{count} problems asked for: there are {len(sums)} to choose from")
    return [_problem(a, b) for a, b in random.Random(seed).sample(sums, count)]


def split(train: int, held_out: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Return `train` problems to learn from and `held_out` others to test on.

    A held-out 47 + 85 keeps 85 + 47 out of training too. Raises InputError when the two numbers are
    more than there are problems.
    """
    tests = problems(held_out, seed=seed)
    asked = {problem.question for problem in tests}
    mirrored = {_question(b, a) for a in NUMBERS for b in NUMBERS if _question(a, b) in asked}
    return problems(train, seed=seed, exclude=asked | mirrored), tests


def is_correct(problem: Problem, text: str) -> bool:
    """Whether `text`, without special tokens, ends in the problem's result and a full stop."""
    found = RESULT.search(text)
    return found is not None and int(found[1]) == problem.result


def _question(a: int, b: int) -> str:
    return f"{a} + {b} = ?"


def _problem(a: int, b: int) -> Problem:
    ones = a % 10 + b % 10
    carry = ones // 10
    tens = a // 10 + b // 10 + carry
    answer = (
        f"ones {a % 10}+{b % 10}={ones} carry {carry}, "
        f"tens {a // 10}+{b // 10}+{carry}={tens}, total {a + b}."
    )
    return Problem(_question(a, b), answer, a + b)
