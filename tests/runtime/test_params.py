"""Requests that cannot be meant are refused in one line that names the fix."""

from __future__ import annotations

import pytest

from marslm.errors import InputError
from marslm.runtime.params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("max_new_tokens", 0, "at least 1"),
        ("temperature", -0.1, "0 (greedy) or more"),
        ("temperature", float("nan"), "0 (greedy) or more"),
        ("temperature", float("inf"), "0 (greedy) or more"),
        ("stop", ("a", ""), "leave it out"),
        ("tau", 0.0, "above 0 and at most 1"),
        ("tau", 1.1, "above 0 and at most 1"),
        ("tau", float("nan"), "above 0 and at most 1"),
        ("block", 0, "at least 1"),
        ("confidence", "certainty", "choose from probability, margin, entropy"),
    ],
)
def test_a_bad_value_is_refused(field: str, value: object, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(**{field: value})
    message = str(caught.value)
    assert fix in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 1),
        ("temperature", 0),
        ("temperature", 100.0),
        ("tau", 1),
        ("tau", 1e-6),
        ("block", 1),
        ("confidence", "margin"),
        ("stop", ("a", "b")),
    ],
)
def test_a_value_at_the_edge_is_taken(field: str, value: object) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value
