"""A request that has no engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from marslm.models.tiny import build_tokenizer
from marslm.runtime.params import SamplingParams
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import Transcript

MakeSequence = Callable[..., Sequence]


@pytest.fixture(scope="session")
def make_sequence() -> MakeSequence:
    tokenizer = build_tokenizer()

    def make(tokens: list[int], **params: object) -> Sequence:
        settings = SamplingParams(**params)
        return Sequence(0, tokens, settings, Transcript(tokenizer, settings, frozenset()))

    return make
