"""`bench limit`: bytes counted by hand, and figures that can be what they say."""

from __future__ import annotations

import pytest
import torch

from helpers import VOCABULARY, build_model
from marslm.bench import limit
from marslm.bench.agreement import agreement
from marslm.bench.limit import LimitBench, weight_bytes


def test_weights_are_counted_once_for_each_linear_layer_and_the_head() -> None:
    model = build_model("llama", dtype=torch.float32)
    hidden, wide, layers = 32, 64, 2
    # Four heads of eight, two of them for keys and for values.
    attention = hidden * hidden * 2 + 2 * hidden * hidden // 2
    weights = layers * (attention + 3 * hidden * wide) + VOCABULARY * hidden
    assert weight_bytes(model, "none") == 4 * weights
    assert weight_bytes(model, "bf16") == 2 * weights
    assert weight_bytes(model, "int8") == weights


def test_rows_follow_from_what_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "_READ_BYTES", 1 << 12)
    monkeypatch.setattr(limit, "_MATRIX", 8)
    model = build_model("llama", dtype=torch.float32)
    bench = LimitBench(model, ["none", "int8"], context=9)
    heard: list[int] = []
    bench.run(3, heard.append)
    assert heard == [1, 2, 3]
    for step, seconds in bench._seconds.items():
        assert len(seconds) == 3
        bench._seconds[step] = [1.0 + step.extra / 16] * 3
    bench._bandwidths = [2.0 * weight_bytes(model, "none")] * 3
    rows = [row for _, row in bench.rows()]
    assert [(r["quantize"], r["extra_rows"]) for r in rows] == [
        *(("none", "drafts"), ("none", "masks")),
        *(("int8", "drafts"), ("int8", "masks")),
    ]
    for row in rows:
        assert (row["cost_4_extra_rows"], row["cost_8_extra_rows"]) == (1.25, 1.5)
    assert (rows[0]["fraction_of_limit"], rows[2]["fraction_of_limit"]) == (0.5, 0.125)


def test_weights_agree_with_themselves_and_mostly_with_narrower_ones() -> None:
    model = build_model("llama", dtype=torch.float32)
    shares = agreement(model, ["none", "int8"], ["ab", "Hm"], max_new_tokens=20)
    assert shares["none"] == 1
    assert 0.5 < shares["int8"] <= 1
