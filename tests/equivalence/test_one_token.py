"""`ar` == recomputing the whole text for each token == transformers' own generate."""

from __future__ import annotations

import pytest
import torch

from helpers import (
    build_model,
    build_runner,
    full_logits,
    random_prompts,
    recompute,
    solo,
    with_random_adapter,
)
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.runtime.window import Window
from marslm.runtime.work import Work

PROMPTS = random_prompts([1, 2, 5, 9, 16, 17, 31, 60], seed=4)


def transformers_greedy(model: MarsModel, prompt: list[int], max_new_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        suppress_tokens=[model.mask_token_id],
    )
    return output[0, len(prompt) :].tolist()


def test_ar_equals_recomputing_and_transformers(random_model: MarsModel) -> None:
    params = SamplingParams(strategy="ar", max_new_tokens=24)
    reasons = set()
    for prompt in PROMPTS:
        answer = solo(random_model, prompt, params)
        assert answer.ids == recompute(random_model, prompt, params)
        assert answer.ids == transformers_greedy(random_model, prompt, 24)
        assert answer.runs == [1] * len(answer.ids)
        reasons.add(answer.finish_reason)
    assert "stop" in reasons


def test_sampled_ar_equals_recomputing(random_model: MarsModel) -> None:
    for seed, prompt in enumerate(PROMPTS):
        params = SamplingParams(strategy="ar", max_new_tokens=16, temperature=0.9, seed=seed)
        assert solo(random_model, prompt, params).ids == recompute(random_model, prompt, params)


def test_decoder_logits_equal_transformers(random_model: MarsModel) -> None:
    """The [MASK] id in a prompt is a token like any other, and can never be generated."""
    prompt = [*PROMPTS[5], random_model.mask_token_id, *PROMPTS[4]]
    runner, _ = build_runner(random_model)
    logits = runner.forward([Work(0, 0, prompt, Window(), len(prompt))])[0]
    torch.testing.assert_close(logits, full_logits(random_model, prompt), rtol=0, atol=1e-10)
    assert torch.isneginf(logits[:, random_model.mask_token_id]).all()


@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize("strategy", ["ar", "mars", "lossless"])
def test_the_mask_token_is_never_generated(strategy: str, temperature: float) -> None:
    """Even where it would be the likeliest token by far."""
    model, prompt = build_model("llama", seed=2), PROMPTS[2]
    params = SamplingParams(
        strategy=strategy, temperature=temperature, max_new_tokens=24, tau=0.01, ignore_eos=True
    )
    head = model.network.get_output_embeddings().weight
    with torch.no_grad():
        head[model.mask_token_id] = 30 * head[full_logits(model, prompt)[-1].argmax()]
        raw = model.network(torch.tensor([prompt])).logits[0, -1]
    assert raw.argmax() == model.mask_token_id
    assert model.mask_token_id not in solo(model, prompt, params).ids


def test_a_mask_only_adapter_leaves_one_token_decoding_untouched(random_model: MarsModel) -> None:
    adapted = with_random_adapter(random_model)
    params = SamplingParams(strategy="ar", max_new_tokens=16)
    for prompt in [*PROMPTS, [random_model.mask_token_id, 5, random_model.mask_token_id]]:
        assert solo(adapted, prompt, params).ids == solo(random_model, prompt, params).ids


@pytest.mark.parametrize("window", [0, 3])
def test_clean_rows_are_bit_identical_with_a_mask_only_adapter(
    random_model: MarsModel, window: int
) -> None:
    """With masks in the same forward too: prompt [MASK]s stay ordinary, only window rows change."""
    mask = random_model.mask_token_id
    prompts = [[*PROMPTS[3], mask, *PROMPTS[2]], [mask], [*PROMPTS[6], mask]]
    rows = []
    for model in (random_model, with_random_adapter(random_model)):
        runner, _ = build_runner(model, slots=len(prompts))
        works = [
            Work(slot, 0, prompt, Window([mask] * window), len(prompt) + window)
            for slot, prompt in enumerate(prompts)
        ]
        rows.append(runner.forward(works))
    for plain, adapted, prompt in zip(*rows, prompts, strict=True):
        assert torch.equal(plain[: len(prompt)], adapted[: len(prompt)])
        for before, after in zip(plain[len(prompt) :], adapted[len(prompt) :], strict=True):
            assert not torch.allclose(before, after)


def test_lossless_and_mars_survive_the_mask_token_in_a_prompt(fitted_model: MarsModel) -> None:
    prompt = [70, fitted_model.mask_token_id, 66, fitted_model.mask_token_id]
    plain = solo(fitted_model, prompt, SamplingParams(strategy="ar", max_new_tokens=24))
    for strategy in ("lossless", "mars"):
        params = SamplingParams(strategy=strategy, max_new_tokens=24, tau=1.0)
        assert solo(fitted_model, prompt, params).ids == plain.ids
