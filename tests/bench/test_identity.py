"""The referee: equal, parted at a tie, or different; and how often masks agree with the model."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from helpers import build_model, build_network, full_logits, solo
from marslm.bench.identity import TIE_GAP, Referee
from marslm.engine.api import Answer
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

PROMPT = [40, 41, 42]
PARAMS = SamplingParams(max_new_tokens=12, strategy="ar", ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> MarsModel:
    return build_model("llama", seed=1)


@pytest.fixture(scope="module")
def plain(model: MarsModel) -> Answer:
    return solo(model, PROMPT, PARAMS)


def referee(model: MarsModel) -> Referee:
    return Referee(Engine(model, slots=1, max_length=128, pack=False))


def other(answer: Answer, ids: list[int], runs: list[int] | None = None) -> Answer:
    return dataclasses.replace(answer, ids=ids, runs=runs or [1] * len(ids))


def test_equal_answers(model: MarsModel, plain: Answer) -> None:
    found = referee(model).compare(other(plain, list(plain.ids)), plain)
    assert (found.identical, found.gap, found.tie) == (True, None, False)


@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_true_difference(model: MarsModel, plain: Answer, place: int) -> None:
    ids = list(plain.ids)
    ids[place] = (ids[place] + 1) % 256
    found = referee(model).compare(other(plain, ids), plain)
    assert (found.identical, found.tie) == (False, False)
    logits = full_logits(model, [*PROMPT, *plain.ids[:place]])[-1]
    expected = logits[plain.ids[place]] - logits[ids[place]]
    assert found.gap == pytest.approx(expected.item())
    assert found.gap is not None
    assert found.gap > TIE_GAP


@pytest.mark.parametrize(("nudge", "tie"), [(0.0, True), (9e-4, True), (2e-3, False)])
def test_a_tie_counts_as_equal_and_is_told(nudge: float, tie: bool) -> None:
    """Two tokens with the same output weights are equally likely but for a nudge."""
    network = build_network("llama", seed=1)
    model = build_model("llama", network=network)
    plain = solo(model, PROMPT, PARAMS)
    best, twin = plain.ids[4], 200
    assert twin not in plain.ids
    head = network.get_output_embeddings().weight
    hidden: list[Tensor] = []
    network.get_submodule("model").register_forward_hook(
        lambda module, inputs, output: hidden.append(output.last_hidden_state[0, -1])
    )
    full_logits(model, [*PROMPT, *plain.ids[:4]])
    with torch.no_grad():
        # Lower the twin's logit there by exactly the nudge.
        head[twin] = head[best] - nudge * hidden[0] / hidden[0].dot(hidden[0])
    parted = other(plain, [*plain.ids[:4], twin, *plain.ids[5:]])
    found = referee(model).compare(parted, plain)
    assert found.gap == pytest.approx(nudge, abs=1e-9)
    assert (found.identical, found.tie) == (tie, tie)


def test_what_follows_a_difference_does_not_matter(model: MarsModel, plain: Answer) -> None:
    ids = list(plain.ids)
    ids[3] = (ids[3] + 1) % 256
    first = referee(model).compare(other(plain, ids), plain)
    assert referee(model).compare(other(plain, [*ids[:4], 1, 2, 3]), plain) == first


def test_an_answer_that_ends_early_is_different(model: MarsModel, plain: Answer) -> None:
    found = referee(model).compare(other(plain, plain.ids[:7]), plain)
    assert (found.identical, found.gap) == (False, None)
    found = referee(model).compare(plain, other(plain, plain.ids[:7]))
    assert (found.identical, found.gap) == (False, None)


def test_agreement_counts_tokens_read_from_masks_alone(model: MarsModel, plain: Answer) -> None:
    wrong = list(plain.ids)
    wrong[-1] = (wrong[-1] + 1) % 256
    judge = referee(model)
    # Runs of 1, 3, 2, 6: masks gave 0 + 2 + 1 + 5 tokens, and only the last is not the model's own.
    assert judge.mask_agreement(other(plain, wrong, [1, 3, 2, 6]), plain, PARAMS) == (7, 8)
    # Read from a clean row, the same token is no mask's fault.
    assert judge.mask_agreement(other(plain, wrong, [1, 3, 7, 1]), plain, PARAMS) == (8, 8)
    assert judge.mask_agreement(plain, plain, PARAMS) == (0, 0)


def test_agreement_is_judged_on_the_answers_own_prefix(model: MarsModel, plain: Answer) -> None:
    """After a wrong token the model would go on differently; that is what the next is held to."""
    ids = [plain.ids[0], (plain.ids[1] + 1) % 256]
    text = [*PROMPT, *ids]
    ids.append(int(full_logits(model, text)[-1].argmax()))
    assert ids[2] != plain.ids[2]
    assert referee(model).mask_agreement(other(plain, ids, [3]), plain, PARAMS) == (1, 2)


def test_agreement_follows_the_seeded_draws(model: MarsModel) -> None:
    params = dataclasses.replace(PARAMS, temperature=0.9, seed=4)
    drawn = solo(model, PROMPT, params)
    greedy = solo(model, PROMPT, PARAMS)
    assert drawn.ids != greedy.ids
    assert referee(model).mask_agreement(other(drawn, drawn.ids, [12]), drawn, params) == (11, 11)
    equal, total = referee(model).mask_agreement(other(drawn, drawn.ids, [12]), greedy, PARAMS)
    assert (equal < total, total) == (True, 11)
