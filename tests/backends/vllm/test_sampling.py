"""Everything else that a request may ask for gives what it gives without MARS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from helpers import TOKENIZER, build_network, full_logits
from marslm.models.loading import MarsModel

pytestmark = pytest.mark.vllm

Run = Callable[..., list[Any]]
ANY = {"max_tokens": 24}


@pytest.fixture(scope="module")
def both(run_engine: Run, smollm2: dict[str, Any], mars: dict[str, Any]) -> Any:
    """Return a function that does the same calls with plain vLLM and with MARS."""

    def run(*calls: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        engine = {"max_num_seqs": 8}
        return run_engine({**smollm2, **engine}, *calls), run_engine({**mars, **engine}, *calls)

    return run


def test_what_a_request_may_ask_for(both: Any, prompts: list[list[int]]) -> None:
    some = prompts[:8]
    stops = [
        {**ANY, "stop": [" the", "and "]},
        {**ANY, "stop": ["s a", "."], "include_stop_str_in_output": True},
        {**ANY, "stop_token_ids": [28, 30, 253]},
        {**ANY, "min_tokens": 12, "stop_token_ids": [28, 30, 253]},
    ]
    penalties = [
        {**ANY, "repetition_penalty": 1.3},
        {**ANY, "presence_penalty": 0.8, "frequency_penalty": 0.4},
        {**ANY, "bad_words": ["the", " of"]},
        {**ANY, "logprobs": 3},
        {**ANY, "logprobs": 0, "repetition_penalty": 1.1},
    ]
    regex = [{**ANY, "regex": r"(yes|no), because [a-z ]{10,30}\."}]
    calls = [
        {"prompts": some, "params": stops},
        {"prompts": some, "params": penalties},
        {"prompts": some, "params": regex},
        {"prompts": some[:4], "params": [{**ANY, "n": 3}]},
    ]
    plain, mars = both(*calls)
    for wanted, found in zip(plain, mars, strict=True):
        for one, other in zip(wanted, found, strict=True):
            for answer, its in zip(one, other, strict=True):
                for key in ("ids", "text", "finish", "stop"):
                    assert its[key] == answer[key]
                assert_close(its["logprobs"], answer["logprobs"])


def assert_close(found: Any, wanted: Any) -> None:
    """The same log-probabilities for the same tokens, but for rounding and [MASK]'s own share."""
    if wanted is None:
        assert found is None
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        assert one == pytest.approx(other, abs=2e-3)


def test_an_abort_leaves_the_others_alone(both: Any, prompts: list[list[int]]) -> None:
    call = {"do": "abort", "prompts": prompts[:8], "params": [ANY], "steps": 6}
    (wanted,), (found,) = both(call)
    assert {name.partition("-")[0] for name in found} == {"1", "3", "5", "7"}
    assert [each["ids"] for each in found.values()] == [each["ids"] for each in wanted.values()]


def test_bad_settings_are_refused(run_engine: Run, mars: dict[str, Any]) -> None:
    prompt = [[1, 2, 3]]

    def refused(prompts: Any = prompt, **extra: Any) -> dict[str, Any]:
        return {"do": "refuse", "prompts": prompts, "params": [{**ANY, "extra_args": extra}]}

    said = run_engine(
        mars,
        refused(mars_mode="fast"),
        refused(mars_tau=0.0, mars_mode="tau"),
        refused(mars_window=99),
        refused([[1, 16, 2]]),
        refused(mars_mode="tau", mars_tau=0.9),
    )
    assert said[0] == "mars_mode is 'fast': choose off, lossless, tau"
    assert said[1].startswith("mars_tau is 0.0: give a value above 0")
    assert said[2].startswith("mars_window is 99: give a whole number from 2 to 9")
    assert "which is [MASK] here" in said[3]
    assert said[4] is None


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MarsModel]:
    """A small random model that names its [MASK]; its drafts are right as often as chance."""
    folder = tmp_path_factory.mktemp("tiny")
    network = build_network("llama", dtype=torch.float32)
    mask = TOKENIZER.mask_token_id
    network.config.mask_token_id = mask
    network.config.architectures = ["LlamaForCausalLM"]
    network.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder, MarsModel("tiny", network, TOKENIZER, mask)


CHOICES = 3
"""Tokens that sampling leaves at each place (top-k), so that all continuations can be counted."""


def continuations(model: MarsModel, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every continuation under top-k sampling at temperature 1."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, chance in chances.items():
            logits: Tensor = full_logits(model, [*prompt, *text])[-1].float()
            top = logits.topk(CHOICES)
            for token, p in zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True):
                longer[(*text, token)] = chance * p
        chances = longer
    return chances


def test_sampling_is_that_of_the_model(run_engine: Run, tiny: tuple[Path, MarsModel]) -> None:
    """Chi-square against the exact distribution of four tokens, in both exact modes."""
    folder, model = tiny
    prompt, length, samples = [5, 6, 7], 4, 6000
    speculation = {
        "method": "custom_class",
        "model": "marslm.backends.vllm.v1.MarsProposer",
        "num_speculative_tokens": 6,
    }
    settings = {
        "temperature": 1.0,
        "top_k": CHOICES,
        "max_tokens": length,
        "ignore_eos": True,
        "detokenize": False,
    }
    engine = {"model": str(folder), "speculative_config": speculation, "max_num_seqs": 64}
    lossless, counts, off = run_engine(
        engine,
        {"prompts": [prompt] * samples, "params": [settings]},
        {"do": "counters"},
        {
            "prompts": [prompt] * samples,
            "params": [{**settings, "extra_args": {"mars_mode": "off"}}],
        },
    )
    assert counts["accepted"] > 100
    assert counts["drafts"] > counts["accepted"]
    exact = continuations(model, prompt, length)
    texts = sorted(exact, key=exact.__getitem__, reverse=True)
    for answers in (lossless, off):
        found = [tuple(each[0]["ids"]) for each in answers]
        assert set(found) <= set(texts)
        frequent = [text for text in texts if exact[text] * samples >= 8]
        observed = [found.count(text) for text in frequent]
        expected = [exact[text] * samples for text in frequent]
        observed.append(samples - sum(observed))
        expected.append(samples - sum(expected))
        assert chisquare(observed, expected).pvalue > 1e-4


def test_all_continuations_are_counted(tiny: tuple[Path, MarsModel]) -> None:
    exact = continuations(tiny[1], [5, 6, 7], 2)
    assert len(exact) == CHOICES**2
    assert sum(exact.values()) == pytest.approx(1)
