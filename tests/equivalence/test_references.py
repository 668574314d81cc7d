"""`mars` and `lossless` against decoders written down from METHOD with nothing cached.

The references feed the whole text through transformers in every step, so a fault in the cursor, the
cache or the order of window entries shows in the answer or in its runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers import full_logits, letters, make_sequence, random_prompts, solo
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.runtime.sampling import choose
from marslm.strategies.lossless import MIN_DRAFT_CONFIDENCE

Answered = tuple[list[int], list[int], int]
"""Ids, tokens of each step, and rows that a cache makes of the steps after the first."""


def mars_reference(model: MarsModel, prompt: list[int], params: SamplingParams) -> Answered:
    """One block of candidates a step: from the left while the confidence reaches tau."""
    text, runs, fed = list(prompt), [], 0
    masks = [model.mask_token_id] * (params.block - 1)
    while (left := len(prompt) + params.max_new_tokens - len(text)) > 0:
        rows = full_logits(model, [*text, *masks])[len(text) - 1 :]
        # The tokens of the last step are fed as themselves, since masks stood for them.
        fed += runs[-1] + len(masks) if runs else 0
        candidates = choose(rows, make_sequence(text, params=params))
        run = 1
        while run < params.block and confidence(rows[run], candidates[run], params) >= params.tau:
            run += 1
        runs.append(min(run, left))
        text += candidates[: runs[-1]]
    return text[len(prompt) :], runs, fed


def lossless_reference(model: MarsModel, prompt: list[int], params: SamplingParams) -> Answered:
    """The chain [text, drafts, masks]: drafts kept where plain decoding would write them."""
    text, runs, drafts, fed = list(prompt), [], [], 0
    masks = [model.mask_token_id] * (params.block - 1)
    while (left := len(prompt) + params.max_new_tokens - len(text)) > 0:
        rows = full_logits(model, [*text, *drafts, *masks])[len(text) - 1 :]
        # Verified drafts were fed as themselves, so only the free token is still to be.
        fed += 1 + len(drafts) + len(masks) if runs else 0
        written = []
        for row in rows[: len(drafts) + 1]:
            written += choose(row[None], make_sequence(text, params=params), written)
            if drafts[len(written) - 1 : len(written)] != written[-1:]:
                break
        runs.append(min(len(written), left))
        text += written[: runs[-1]]
        if len(written) == len(drafts) + 1:
            drafts = likely_drafts(rows[len(drafts) + 1 :], params, text)
        else:
            drafts = []
    return text[len(prompt) :], runs, fed


def likely_drafts(rows: Tensor, params: SamplingParams, text: list[int]) -> list[int]:
    drafts: list[int] = []
    for row in rows:
        draft = choose(row[None], make_sequence(text, params=params), drafts)[0]
        if probability(row, draft, params) < MIN_DRAFT_CONFIDENCE:
            break
        drafts.append(draft)
    return drafts


def probability(row: Tensor, token: int, params: SamplingParams) -> float:
    return float(torch.softmax(row / (params.temperature or 1), dim=-1)[token])


def confidence(row: Tensor, token: int, params: SamplingParams) -> float:
    if params.confidence == "probability":
        return probability(row, token, params)
    shares = torch.softmax(row / (params.temperature or 1), dim=-1)
    if params.confidence == "margin":
        first, second = shares.topk(2).values.tolist()
        return first - second
    return math.exp(sum(p * math.log(p) for p in shares.tolist() if p > 0))


def cases(strategy: str) -> list[SamplingParams]:
    confidences = ("probability", "margin", "entropy") if strategy == "mars" else ("probability",)
    return [
        SamplingParams(
            strategy=strategy,
            max_new_tokens=26,
            temperature=temperature,
            seed=11,
            ignore_eos=True,
            tau=tau,
            block=block,
            confidence=name,
        )
        for temperature, tau, block in [(0.0, 0.4, 4), (0.0, 0.15, 6), (0.7, 0.3, 3)]
        for name in confidences
    ]


@pytest.mark.parametrize(
    ("reference", "params"),
    [(mars_reference, params) for params in cases("mars")]
    + [(lossless_reference, params) for params in cases("lossless-chain")],
)
def test_answers_and_runs_equal_the_reference(
    fitted_model: MarsModel,
    reference: Callable[[MarsModel, list[int], SamplingParams], Answered],
    params: SamplingParams,
) -> None:
    runs = set()
    for length in (1, 6, 21):
        prompt = letters(length, random.Random(length))
        answer = solo(fitted_model, prompt, params)
        assert (answer.ids, answer.runs, answer.decode_rows) == reference(
            fitted_model, prompt, params
        )
        runs |= set(answer.runs)
    assert len(runs) > 1


@pytest.mark.parametrize("reference", [mars_reference, lossless_reference])
def test_random_models_equal_the_reference(
    random_model: MarsModel,
    reference: Callable[[MarsModel, list[int], SamplingParams], Answered],
) -> None:
    strategy = "mars" if reference is mars_reference else "lossless-chain"
    params = SamplingParams(
        strategy=strategy, max_new_tokens=20, tau=0.08, block=4, ignore_eos=True
    )
    for prompt in random_prompts([1, 8, 23], seed=5):
        answer = solo(random_model, prompt, params)
        assert (answer.ids, answer.runs, answer.decode_rows) == reference(
            random_model, prompt, params
        )
