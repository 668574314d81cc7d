"""Everything else that a request may ask for gives what it gives without MARS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scipy.stats import chisquare
from torch import Tensor

from helpers import LETTERS, TOKENIZER, full_logits
from marslm.models.loading import MarsModel

pytestmark = pytest.mark.vllm

Run = Callable[..., list[Any]]
ANY = {"max_tokens": 24}


@pytest.fixture(scope="module")
def both(run_engine: Run, letters_plain: dict[str, Any], letters_mars: dict[str, Any]) -> Any:
    """Return a function that does the same calls with plain vLLM and with MARS."""

    def run(*calls: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        mars = run_engine(letters_mars, *calls, {"do": "counters"})
        assert mars.pop()["accepted"] > 20
        return run_engine(letters_plain, *calls), mars

    return run


def test_what_a_request_may_ask_for(both: Any, letter_prompts: list[list[int]]) -> None:
    stops = [
        {**ANY, "stop": ["kl", "def"]},
        {**ANY, "stop": ["la", "fg"], "include_stop_str_in_output": True},
        {**ANY, "stop_token_ids": LETTERS[4:6]},
        {**ANY, "min_tokens": 12, "stop_token_ids": LETTERS[4:6]},
    ]
    penalties = [
        {**ANY, "repetition_penalty": 1.3},
        {**ANY, "presence_penalty": 0.8, "frequency_penalty": 0.4},
        {**ANY, "bad_words": ["d", "fg"]},
        {**ANY, "logprobs": 3},
        {**ANY, "logprobs": 0, "repetition_penalty": 1.1},
    ]
    regex = [{**ANY, "regex": r"[a-f]{3}(kl|ef)[a-l]{6}"}]
    calls = [
        {"prompts": letter_prompts, "params": stops},
        {"prompts": letter_prompts, "params": penalties},
        {"prompts": letter_prompts, "params": regex},
        {"prompts": letter_prompts, "params": [{**ANY, "n": 3}]},
        {"do": "abort", "prompts": letter_prompts, "params": [ANY], "steps": 4},
    ]
    (*plain, some), (*mars, survivors) = both(*calls)
    for wanted, found in zip(plain, mars, strict=True):
        for one, other in zip(wanted, found, strict=True):
            assert len(one) == len(other)
            for answer, its in zip(one, other, strict=True):
                for key in ("ids", "text", "finish", "stop"):
                    assert its[key] == answer[key]
                assert_close(its["logprobs"], answer["logprobs"])
    assert len(survivors) == len(letter_prompts) // 2
    assert [each["ids"] for each in survivors.values()] == [each["ids"] for each in some.values()]


def assert_close(found: Any, wanted: Any) -> None:
    """The same log-probabilities for the same tokens, but for rounding and [MASK]'s own share."""
    if wanted is None:
        assert found is None
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        assert one == pytest.approx(other, abs=2e-3)


def test_bad_settings_are_refused(run_engine: Run, letters_mars: dict[str, Any]) -> None:
    prompt = [[1, 2, 3]]

    def refused(prompts: Any = prompt, **extra: Any) -> dict[str, Any]:
        return {"do": "refuse", "prompts": prompts, "params": [{**ANY, "extra_args": extra}]}

    said = run_engine(
        letters_mars,
        refused(mars_mode="fast"),
        refused(mars_tau=0.0, mars_mode="tau"),
        refused(mars_window=99),
        refused([[1, TOKENIZER.mask_token_id, 2]]),
        refused(mars_mode="tau", mars_tau=0.9),
    )
    assert said[0] == "mars_mode is 'fast': choose off, lossless, tau"
    assert said[1].startswith("mars_tau is 0.0: give a value above 0")
    assert said[2].startswith("mars_window is 99: give a whole number from 2 to 7")
    assert "which is [MASK] here" in said[3]
    assert said[4] is None


TEMPERATURE = 1.0
CHOICES = 3
"""Tokens that sampling leaves at each place (top-k), so that all continuations can be counted."""


def continuations(model: MarsModel, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every continuation under these settings."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, chance in chances.items():
            logits: Tensor = full_logits(model, [*prompt, *text])[-1].float()
            top = logits.topk(CHOICES)
            for token, p in zip(
                top.indices.tolist(), (top.values / TEMPERATURE).softmax(-1).tolist(), strict=True
            ):
                longer[(*text, token)] = chance * p
        chances = longer
    return chances


def test_sampling_is_that_of_the_model(
    run_engine: Run, letters_mars: dict[str, Any], letters_model: MarsModel
) -> None:
    """Chi-square against the exact distribution of four tokens, in both exact modes."""
    prompt, length, samples = LETTERS[:3], 4, 6000
    settings = {
        "temperature": TEMPERATURE,
        "top_k": CHOICES,
        "max_tokens": length,
        "ignore_eos": True,
        "detokenize": False,
    }
    off = {**settings, "extra_args": {"mars_mode": "off"}}
    lossless, counts, one_by_one = run_engine(
        letters_mars,
        {"prompts": [prompt] * samples, "params": [settings]},
        {"do": "counters"},
        {"prompts": [prompt] * samples, "params": [off]},
    )
    assert counts["drafts"] - counts["accepted"] > 500
    assert counts["accepted"] > 500
    exact = continuations(letters_model, prompt, length)
    assert len(exact) == CHOICES**length
    for answers in (lossless, one_by_one):
        found = [tuple(each[0]["ids"]) for each in answers]
        assert set(found) <= set(exact)
        frequent = [text for text in exact if exact[text] * samples >= 8]
        observed = [found.count(text) for text in frequent]
        expected = [exact[text] * samples for text in frequent]
        observed.append(samples - sum(observed))
        expected.append(samples - sum(expected))
        assert len(frequent) > 8
        assert chisquare(observed, expected).pvalue > 1e-4
