"""The models and the path to `helpers` that all tests share."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

# Both are read on import. Tests run beside one another, so each process has one thread, as have
# those that it starts; and no message is broken where a long temporary path stands in it.
os.environ.update(OMP_NUM_THREADS="1", COLUMNS="200")

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from helpers import build_model, fit_heads, fit_letters
from marslm.models.loading import MarsModel
from marslm.models.record import MarsRecord, marks_of
from marslm.models.tiny import ARCHITECTURES
from marslm.strategies import registry

# Machines differ in speed, and a failure must come back when the test is run again. To search
# further: pytest --hypothesis-profile=thorough
settings.register_profile("marslm", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("thorough", deadline=None, max_examples=3000)
settings.load_profile("marslm")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: more threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test, a document or an example registers is gone after it, in whatever order."""
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))


@pytest.fixture(scope="session", params=list(ARCHITECTURES))
def random_model(request: pytest.FixtureRequest) -> MarsModel:
    """A random float64 model of each architecture; a text ends at one token in sixteen."""
    return build_model(request.param, seed=1, end_token_ids=range(7, 288, 16))


@pytest.fixture(scope="session")
def fitted_draft(fitted_model: MarsModel) -> MarsModel:
    """A worse model of the same language, trained for B = 4: right and wrong often enough."""
    network = copy.deepcopy(fitted_model.network)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(0.04 * noise)
    marks = marks_of(network, fitted_model.tokenizer)
    record = MarsRecord("full", fitted_model.mask_token_id, block_size=4, base=marks)
    return replace(fitted_model, network=network, record=record)


@pytest.fixture(scope="session")
def fitted_medusa(fitted_model: MarsModel) -> MarsModel:
    """The fitted model with Medusa heads instead of masks, trained for a few seconds too."""
    marks = marks_of(fitted_model.network, fitted_model.tokenizer)
    record = MarsRecord("medusa", fitted_model.mask_token_id, block_size=4, base=marks)
    return replace(fitted_model, record=record, heads=fit_heads(fitted_model))


@pytest.fixture(scope="session")
def fitted_model() -> MarsModel:
    """A float64 model after a few seconds of MARS training: some of its drafts are right."""
    return fit_letters()
