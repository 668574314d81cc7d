"""The parts of a step: what is counted as its forward."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from helpers import build_model, random_prompts
from marslm.bench.step import profile
from marslm.errors import InputError
from marslm.runtime.compiled_step import CompiledStep
from marslm.runtime.params import SamplingParams


def test_a_step_needs_more_than_one_token() -> None:
    model = build_model("llama")
    with pytest.raises(InputError, match="max_new_tokens is 1: give at least 2"):
        profile(model, random_prompts([5]), SamplingParams(max_new_tokens=1), batch=1)


def test_compiled_layers_are_part_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    def slow(*_: object) -> None:
        entered.append(True)
        time.sleep(0.03)

    monkeypatch.setattr(CompiledStep, "run_layers", slow)
    model = replace(build_model("llama", hidden_size=64, dtype=torch.float32), quantize="int8")
    row = profile(model, random_prompts([5]), SamplingParams(max_new_tokens=4), batch=1)
    if not entered:
        pytest.skip("no C compiler, or a CPU without AVX2")
    assert row["forward"] >= 0.03
