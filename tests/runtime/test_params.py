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
        ("min_tokens", -1, "0 (none) or more"),
        ("top_k", -1, "0 (all) or more"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.1, "above 0 and at most 1"),
        ("min_p", -0.1, "from 0 to 1"),
        ("min_p", float("nan"), "from 0 to 1"),
        ("repetition_penalty", 0.0, "above 0"),
        ("frequency_penalty", float("inf"), "a number"),
        ("presence_penalty", float("nan"), "a number"),
        ("logit_bias", {3: float("nan")}, "or -inf"),
        ("logprobs", 21, "0 to 20"),
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
        ("top_p", 1),
        ("min_p", 1),
        ("repetition_penalty", 0.1),
        ("logit_bias", {3: float("-inf")}),
        ("logprobs", 0),
        ("tau", 1),
        ("tau", 1e-6),
        ("block", 1),
        ("confidence", "margin"),
        ("stop", ("a", "b")),
    ],
)
def test_a_value_at_the_edge_is_taken(field: str, value: object) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value
