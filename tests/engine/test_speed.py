"""The knob refuses what the engine could not obey."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers import build_model
from marslm.engine.engine import Engine
from marslm.engine.speed import SpeedKnob
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.models.medusa import MedusaHeads
from marslm.runtime.params import SamplingParams


def test_the_default_is_exact() -> None:
    assert SpeedKnob().strategy == "lossless"


@pytest.fixture
def small() -> MarsModel:
    return build_model("llama", hidden_size=16, layers=1, context=64)


@pytest.mark.parametrize("tau", [0, 1.2, -1, float("nan")])
def test_a_tau_out_of_range_leaves_the_old_one(tau: float) -> None:
    knob = SpeedKnob(tau=0.7)
    with pytest.raises(InputError, match="above 0 and at most 1"):
        knob.tau = tau
    assert knob.tau == 0.7


def test_an_unknown_strategy_leaves_the_old_one() -> None:
    knob = SpeedKnob(strategy="mars")
    with pytest.raises(InputError, match="unknown strategy 'fast'"):
        knob.strategy = "fast"
    assert knob.strategy == "mars"


@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"strategy": "fast"}])
def test_a_knob_is_checked_when_it_is_made(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SpeedKnob(**settings)


@pytest.mark.parametrize("strategy", ["medusa", "block_diffusion", "draft_model"])
def test_a_strategy_that_the_engine_cannot_build_leaves_the_old_one(
    small: MarsModel, strategy: str
) -> None:
    """Running answers would end with it, and new requests be refused."""
    engine = Engine(small, slots=1, pack=False)
    sequence = engine.add([5, 6], SamplingParams(max_new_tokens=9, ignore_eos=True))
    engine.step()
    with pytest.raises(InputError, match=r"has no|was not trained|needs a second model"):
        engine.speed.strategy = strategy
    assert engine.speed.strategy == "lossless"
    for _ in engine.run():
        pass
    assert len(sequence.transcript.ids) == 9


def test_heads_are_no_training_for_masks(small: MarsModel) -> None:
    heads = MedusaHeads(small.network.get_output_embeddings().weight.detach(), count=3)
    engine = Engine(replace(small, heads=heads), slots=1, pack=False)
    engine.speed.strategy = "medusa"
    with pytest.raises(InputError, match="no training for masks"):
        engine.speed.strategy = "mars"
    assert engine.speed.strategy == "medusa"
