"""The kernel that replaces vLLM's broken one on CPUs."""

from __future__ import annotations

import pytest
import torch

from marslm.backends.vllm.cpu import expand


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_request_has_its_value_once_for_each_draft(dtype: torch.dtype) -> None:
    values = torch.tensor([3, 0, 7, 9]).to(dtype)
    ends = torch.tensor([2, 3, 3, 5], dtype=torch.int32)
    output = torch.full((5,), -1, dtype=dtype)
    expand(output, values, ends, 0, 1, 32)
    assert output.tolist() == [3, 3, 1, 9, 9]


def test_fractions_stay_and_nothing_needs_replacing() -> None:
    output = torch.empty(3)
    expand(output, torch.tensor([0.7, 0.0]), torch.tensor([1, 3]), 0, 0)
    assert output.tolist() == pytest.approx([0.7, 0, 0])
