"""HumanEval's scoring, in the sandbox, in place of the harness' own, which downloads its runner.

Knows nothing about models or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marslm.evaluation.sandbox import run_program

_FENCE = "```"

SCORING: dict[str, Any] = {
    "filter_list": None,
    "metric_list": [{"metric": "pass@1", "aggregation": "mean", "higher_is_better": True}],
}


def program_of(document: Mapping[str, str], answer: str) -> str:
    """Return the whole program: the function as it was begun, its rest, and the tests of it.

    The prompt ends inside a code block, so the answer's code ends where it closes the block.
    """
    body = answer.partition(_FENCE)[0]
    check = f"check({document['entry_point']})"
    return "\n".join([document["prompt"] + body, document["test"], check])


def process_results(document: Mapping[str, str], answers: Sequence[str]) -> dict[str, float]:
    """Score one answer, as the harness asks."""
    return {"pass@1": float(run_program(program_of(document, answers[0])).passed)}
