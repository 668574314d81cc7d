"""A mask-only adapter in vLLM's layers, whole and split over ranks; a drafter for stock vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import recompute_mars
from marslm.models.adapter import read_adapter
from marslm.models.loading import MarsModel

# A start of vLLM takes minutes on a busy machine.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

Run = Callable[..., list[Any]]
TOKENS = 20
TAU = {
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "extra_args": {"mars_mode": "tau", "mars_tau": 0.3},
}
LOSSLESS = {"max_tokens": TOKENS, "ignore_eos": True}


@pytest.mark.parametrize("ranks", [1, 2])
def test_masks_alone_feel_the_adapter(
    run_engine: Run,
    letters_mars: dict[str, Any],
    letters_model: MarsModel,
    letters_adapter: Path,
    letter_prompts: list[list[int]],
    ranks: int,
) -> None:
    """Mode tau writes what this project's decoder writes with the adapter, lossless what it does
    without: so the rows of masks have it, and no others.
    """
    adapter = read_adapter(letters_adapter)
    model = replace(letters_model, adapter=adapter, record=adapter.record)
    engine = {
        **letters_mars,
        "tensor_parallel_size": ranks,
        "additional_config": {"mars": {"adapter": str(letters_adapter)}},
    }
    tau, lossless = run_engine(
        engine,
        {"prompts": letter_prompts, "params": [TAU]},
        {"prompts": letter_prompts, "params": [LOSSLESS]},
    )
    masks = adapter.record.block_size - 1
    wanted = [recompute_mars(model, each, TOKENS, 0.3, masks) for each in letter_prompts]
    bare = [recompute_mars(letters_model, each, TOKENS, 0.3, masks) for each in letter_prompts]
    assert [each[0]["ids"] for each in tau] == wanted != bare
    assert [each[0]["ids"] for each in lossless] == [
        recompute_mars(letters_model, each, TOKENS) for each in letter_prompts
    ]


def test_a_drafter_for_stock_vllm(
    run_engine: Run,
    letters_plain: dict[str, Any],
    letters_model: MarsModel,
    letter_prompts: list[list[int]],
) -> None:
    """vLLM's own parallel drafting with a checkpoint that names its [MASK]; no plugin code runs."""
    drafter = {
        "method": "draft_model",
        "model": letters_plain["model"],
        "num_speculative_tokens": 3,
        "parallel_drafting": True,
    }
    answers, accepted = run_engine(
        {**letters_plain, "speculative_config": drafter, "disable_log_stats": False},
        {"prompts": letter_prompts, "params": [LOSSLESS]},
        {"do": "accepted"},
    )
    assert [each[0]["ids"] for each in answers] == [
        recompute_mars(letters_model, each, TOKENS) for each in letter_prompts
    ]
    # The first draft is the model's own next token, so it is nearly always kept; masks add to it.
    assert accepted[0] > accepted[1] > 0
