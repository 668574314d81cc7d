"""Rows are padded to few numbers, and nobody sees the padding."""

from __future__ import annotations

import torch
from torch import Tensor

from marslm.models.row_buckets import bucket, in_buckets


def test_few_numbers_of_rows_are_seen_and_results_stay() -> None:
    seen = set()

    def product(x: Tensor) -> Tensor:
        seen.add(len(x))
        return x * 2 + 1

    padded = in_buckets(product)
    for rows in range(1, 513):
        x = torch.randn(rows, 3)
        assert torch.equal(padded(x), x * 2 + 1)
    assert len(seen) == 42
    assert all(bucket(rows) == rows for rows in seen)
