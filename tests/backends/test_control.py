"""What `collective_rpc` reaches in a worker, with a runner that stands in for vLLM's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from marslm.backends.vllm.control import MarsControl
from marslm.backends.vllm.drafter import Drafter
from marslm.backends.vllm.params import MarsParams
from marslm.backends.vllm.settings import MarsSettings
from marslm.errors import InputError


def control() -> MarsControl:
    worker = MarsControl()
    settings = MarsSettings(mask_token_id=9, width=6, defaults=MarsParams(window=4))
    proposer = SimpleNamespace(settings=settings, drafter=Drafter(9, 6))
    worker.model_runner = SimpleNamespace(drafter=proposer)
    return worker


def test_counts_so_far() -> None:
    worker = control()
    worker.model_runner.drafter.drafter.counters.add(drafts=3, accepted=2, tokens=3)
    counts = worker.mars_counters()
    assert (counts["drafts"], counts["accepted"], counts["tokens_per_forward"]) == (3, 2, 3)


def test_defaults_are_turned() -> None:
    worker = control()
    worker.mars_defaults(mode="tau", tau=0.8)
    worker.mars_defaults(window=3)
    assert worker.model_runner.drafter.settings.defaults == MarsParams("tau", 0.8, window=3)


def test_a_bad_default_changes_nothing() -> None:
    worker = control()
    before = worker.model_runner.drafter.settings
    with pytest.raises(InputError, match="mars_window is 8: give a whole number from 2 to 7"):
        worker.mars_defaults(mode="tau", window=8)
    assert worker.model_runner.drafter.settings == before
