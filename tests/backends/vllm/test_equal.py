"""What is written inside vLLM, against vLLM's own greedy decoding and a reference without a cache.

float32 on both sides. A step with several rows rounds differently from one with a single row, so a
tie between two tokens could in principle fall the other way; none does on these prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers import recompute_mars
from marslm.models.loading import MarsModel, load
from marslm.models.short_names import shipped_adapter

# A start of vLLM takes minutes on a busy machine.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

Run = Callable[..., list[Any]]
TOKENS = 16
GREEDY = {"max_tokens": TOKENS}
LONG = {"max_tokens": 400}
TAUS = [{"tau": 0.5, "window": 5}, {"tau": 0.3, "window": 3}]
BLOCK = 32


def with_mars(mode: str, **settings: Any) -> dict[str, Any]:
    extra = {"mars_mode": mode, **{f"mars_{key}": value for key, value in settings.items()}}
    return {**GREEDY, "extra_args": extra}


def ids(answers: list[Any]) -> list[list[int]]:
    return [each[0]["ids"] for each in answers]


@pytest.fixture(scope="module")
def just_over(prompts: list[list[int]]) -> list[list[int]]:
    """Prompts of which one token is left to read once their only whole block is in the cache."""
    return [each[: BLOCK + 1] for each in prompts[:6] if len(each) > BLOCK] * 2


@pytest.fixture(scope="module")
def plain(
    run_engine: Run,
    smollm2: dict[str, Any],
    prompts: list[list[int]],
    just_over: list[list[int]],
) -> list[list[list[int]]]:
    """What vLLM writes without MARS, sixteen requests at once."""
    engine = {**smollm2, "max_num_seqs": 16, "enable_prefix_caching": False}
    calls = [{"prompts": each, "params": [GREEDY]} for each in (prompts, just_over)]
    return [ids(answers) for answers in run_engine(engine, *calls)]


@pytest.fixture(scope="module")
def written(
    run_engine: Run, mars: dict[str, Any], prompts: list[list[int]], just_over: list[list[int]]
) -> list[Any]:
    """What MARS writes, sixteen requests at once, with a prefix cache; all in one engine."""
    cached = {"block_size": BLOCK, "enable_prefix_caching": True, "disable_log_stats": False}
    modes = [with_mars("off"), with_mars("lossless"), with_mars("tau", tau=1.0), GREEDY]
    modes += [with_mars("lossless", tau=0.5, window=3)]
    return run_engine(
        {**mars, **cached, "max_num_seqs": 16},
        {"prompts": prompts, "params": [GREEDY]},
        {"do": "counters"},
        {"do": "metric", "name": "vllm:prefix_cache_hits"},
        {"prompts": prompts[:16], "params": [GREEDY]},
        {"prompts": prompts[16:40], "params": modes},
        {"prompts": just_over, "params": [GREEDY]},
        {"do": "metric", "name": "vllm:prefix_cache_hits"},
        {"prompts": prompts[:20], "params": [with_mars("tau", **each) for each in TAUS]},
    )


def test_lossless_is_vllms_own_greedy(written: list[Any], plain: list[list[list[int]]]) -> None:
    """Sixteen at once, twice, so that the second time prefixes come from the cache."""
    first, counts, hits_before, second, mixed, just_over, hits_after, _ = written
    assert ids(first) == plain[0]
    assert ids(second) == plain[0][:16]
    assert ids(mixed) == plain[0][16:40]
    assert ids(just_over) == plain[1]
    assert hits_after - hits_before >= BLOCK * (16 + 24 + len(just_over))
    assert counts["accepted"] > 50


def test_one_at_a_time_without_a_prefix_cache(
    run_engine: Run, mars: dict[str, Any], prompts: list[list[int]], plain: list[list[list[int]]]
) -> None:
    (answers,) = run_engine(
        {**mars, "enable_prefix_caching": False},
        {"prompts": prompts, "params": [{"max_tokens": 8}], "together": False},
    )
    assert ids(answers) == [each[:8] for each in plain[0]]


def test_under_pressure(
    run_engine: Run, smollm2: dict[str, Any], mars: dict[str, Any], prompts: list[list[int]]
) -> None:
    """Small blocks, prompts read in pieces, preemption, and answers up to the length limit."""
    tight = {
        "block_size": 32,
        "max_model_len": 96,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 48,
        "num_gpu_blocks_override": 12,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
    }
    off = {**LONG, "extra_args": {"mars_mode": "off"}}
    lossless, one = LONG, {**LONG, "extra_args": {"mars_mode": "tau", "mars_tau": 1}}
    some = prompts[:12]
    (wanted,) = run_engine({**smollm2, **tight}, {"prompts": some, "params": [LONG]})
    found, mixed, preempted = run_engine(
        {**mars, **tight},
        {"prompts": some, "params": [lossless]},
        {"prompts": some, "params": [off, lossless, one]},
        {"do": "metric", "name": "vllm:num_preemptions"},
    )
    assert ids(found) == ids(wanted)
    assert ids(mixed) == ids(wanted)
    assert preempted > 0
    assert {each[0]["finish"] for each in wanted} >= {"length"}


@pytest.fixture(scope="module")
def model() -> MarsModel:
    return load("smollm2", adapter=shipped_adapter("smollm2"))


def test_tau_is_the_papers_decoding(
    written: list[Any], prompts: list[list[int]], plain: list[list[list[int]]], model: MarsModel
) -> None:
    shapes = [(0.5, 4), (0.3, 2)]
    some = prompts[:20]
    wanted = [recompute_mars(model, each, TOKENS, *shapes[i % 2]) for i, each in enumerate(some)]
    assert ids(written[-1]) == wanted
    assert ids(written[-1]) != plain[0][:20]
