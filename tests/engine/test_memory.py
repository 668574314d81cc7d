"""A cache within a budget of bytes."""

from __future__ import annotations

import pytest
import torch

from helpers import build_model
from marslm.engine.engine import Engine
from marslm.engine.memory import bytes_per_token, length_within
from marslm.errors import InputError


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cache_takes_the_bytes_that_were_counted(architecture: str, dtype: torch.dtype) -> None:
    model = build_model(architecture, dtype=dtype, context=1024)
    budget = 3 * 256 * bytes_per_token(model)
    for given, length in ((budget, 256), (2 * budget - 1, 384), (budget * 9, 1024)):
        engine = Engine(model, slots=3, cache_bytes=given, pack=False)
        assert engine.max_length == length
        cells = engine._cache._cells
        assert cells.numel() * cells.itemsize <= given


def test_a_budget_that_holds_nothing_is_refused() -> None:
    model = build_model("llama")
    needed = 2 * 128 * bytes_per_token(model)
    with pytest.raises(InputError, match=f"give at least {needed}, or fewer slots"):
        length_within(model, 2, needed - 1)


def test_a_request_that_cannot_fit_is_refused_and_one_that_must_wait_waits() -> None:
    model = build_model("llama", context=1024)
    engine = Engine(model, slots=1, cache_bytes=128 * bytes_per_token(model), pack=False)
    with pytest.raises(InputError, match="beyond the limit of 128"):
        engine.add([1] * 128)
    first, second = engine.add([1] * 127), engine.add([2] * 5)
    engine.step()
    assert (engine.running, engine.waiting) in ((1, 1), (0, 1))
    for _ in engine.run():
        pass
    assert first.finished
    assert second.finished
