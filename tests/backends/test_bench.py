"""The comparison inside vLLM, with engines that stand in for vLLM's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from marslm.backends.vllm.bench import run_bench

TURNS: list[tuple[str, int, int]] = []


class FakeEngine:
    """Answers every prompt with its own ids, n-gram's with one mistake."""

    def __init__(self, **config: Any) -> None:
        speculation = config.get("speculative_config") or {"method": "plain"}
        self.name = speculation["method"]
        self.steps = 0
        assert config["model"] == "base"
        assert config["max_model_len"] == 64
        assert config["enable_prefix_caching"] is False

    def generate(self, prompts: list[Any], params: Any, use_tqdm: bool) -> list[Any]:
        mode = (params.extra_args or {}).get("mars_mode", self.name)
        TURNS.append((mode, len(prompts), params.max_tokens))
        self.steps += len(prompts)
        answers = [list(prompt["prompt_token_ids"]) for prompt in prompts]
        if self.name == "ngram":
            answers[0] = [0, 0]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)]) for ids in answers]

    def collective_rpc(self, method: str) -> list[dict[str, int]]:
        assert method == "mars_counters"
        return [{"forwards": self.steps}]


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    module.__dict__.update(__version__="0.32.0", LLM=FakeEngine, SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", module)
    TURNS.clear()


def test_every_variant_takes_its_turn_on_every_batch() -> None:
    prompts = [[1, 2], [3, 4], [5, 6]]
    rows = run_bench(
        "base",
        None,
        prompts,
        requests=[1, 2],
        tau=0.8,
        max_new_tokens=2,
        engine={"max_model_len": 64},
        listener=lambda _: None,
    )
    order = ["plain", "ngram", "off", "lossless", "tau"]
    timed = [turn for turn in TURNS if turn[2] == 2]
    assert timed[:10] == [(name, 1, 2) for name in order] * 2
    assert timed[15:] == [(name, 2, 2) for name in order] + [(name, 1, 2) for name in order]
    assert [row["variant"] for row in rows[:5]] == ["plain", "n-gram", "off", "lossless", "tau 0.8"]
    assert [row["requests"] for row in rows] == [1] * 5 + [2] * 5
    by_name = {row["variant"]: row for row in rows[5:]}
    assert by_name["plain"]["speed"] == 1
    assert by_name["n-gram"]["identical_to_plain"] == 1
    assert by_name["lossless"]["identical_to_plain"] == by_name["lossless"]["answers"] == 3
    assert by_name["lossless"]["tokens_per_forward"] == 2
    assert by_name["plain"]["tokens_per_forward"] is None


def test_every_variant_is_warm_before_the_clock_runs() -> None:
    rows = run_bench(
        "base",
        None,
        [[1, 2], [3, 4], [5, 6]],
        requests=[2],
        tau=0.8,
        max_new_tokens=9,
        engine={"max_model_len": 64},
        listener=lambda _: None,
    )
    assert [requests for _, requests, tokens in TURNS[:5] if tokens < 9] == [2] * 5
    assert {tokens for *_, tokens in TURNS[5:]} == {9}
    assert {row["answers"] for row in rows} == {3}
