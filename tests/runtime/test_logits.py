"""What greedy requests read of a step's logits, one by one or for all of them at once."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import Tensor

from helpers import letters, make_sequence, solo
from marslm.engine import engine as engine_module
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.logits import logits_of_step
from marslm.runtime.params import SamplingParams
from marslm.runtime.sampling import draw


@pytest.fixture
def parts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 50, generator=generator) for rows in (3, 0, 1, 5)]


def test_reading_together_says_the_same_of_every_slice(parts: list[Tensor]) -> None:
    apart, together = (logits_of_step(parts, together=each) for each in (False, True))
    request = make_sequence([1, 2, 3])
    for one, other in zip(apart, together, strict=True):
        for rows in (slice(None), slice(1, 3), slice(2, None), slice(-1, None), slice(0, 0)):
            for of in (lambda x: x[rows], lambda x: x[1:][rows]):  # noqa: B023
                alone, shared = draw(of(one), request), draw(of(other), request)
                assert shared.tokens == alone.tokens
                assert shared.confidences() == pytest.approx(alone.confidences(), rel=1e-5)
                assert shared.confidences("margin") == alone.confidences("margin")


def test_on_a_cpu_rows_are_read_when_they_are_asked_for(parts: list[Tensor]) -> None:
    assert not any(each.together for each in logits_of_step(parts))


def test_drawn_tokens_have_the_confidence_of_what_they_were_drawn_from(parts: list[Tensor]) -> None:
    warm = make_sequence([1, 2, 3], temperature=2.0)
    for logits in logits_of_step(parts, together=True):
        draws = draw(logits, warm)
        expected = draws.log_probs().exp()[range(len(logits)), draws.tokens]
        assert draws.confidences() == pytest.approx(expected.tolist())


@pytest.mark.parametrize(
    ("strategy", "reads"), [("ar", 1), ("mars", 2), ("lossless-chain", 2), ("lossless-tree", 2)]
)
def test_a_greedy_step_is_read_twice_however_many_requests_it_has(
    fitted_model: MarsModel, monkeypatch: pytest.MonkeyPatch, strategy: str, reads: int
) -> None:
    monkeypatch.setattr(engine_module, "logits_of_step", partial(logits_of_step, together=True))
    engine = Engine(fitted_model, slots=5, pack=False, costs=AssumedCosts())
    params = SamplingParams(strategy=strategy, max_new_tokens=20, tau=0.4, ignore_eos=True)
    prompts = [letters(length, random.Random(length)) for length in (3, 20, 5, 11, 8)]
    requests = [engine.add(prompt, params) for prompt in prompts]
    counts, read = [], 0

    def tolist(tensor: Tensor) -> object:
        nonlocal read
        read += 1
        return real(tensor)

    real = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", tolist)
    while engine.busy:
        read = 0
        engine.step()
        counts.append(read)
    monkeypatch.undo()
    assert max(counts) == reads
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.transcript.ids == solo(fitted_model, prompt, params).ids
