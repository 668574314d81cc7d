"""A small model, which trains in float32, and examples of unequal length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from helpers import build_model
from marslm.data.dialogues import Dialogue, Message
from marslm.data.encode import Example, encode_dialogue
from marslm.models.loading import MarsModel
from marslm.models.tiny import build_tokenizer

MakeModel = Callable[..., MarsModel]


@pytest.fixture
def make_model() -> MakeModel:
    """Return a function that builds the same small random model each time."""

    def make(architecture: str = "qwen2") -> MarsModel:
        return build_model(architecture, seed=1, dtype=torch.float32)

    return make


@pytest.fixture
def examples() -> list[Example]:
    """Five dialogues; the third has two answers, so two supervised runs."""
    chats = [
        [("user", "1+2"), ("assistant", "3")],
        [("system", "Count."), ("user", "to five"), ("assistant", "one two three four five")],
        [("user", "a"), ("assistant", "aaaaaaa"), ("user", "b"), ("assistant", "bbbb")],
        [("user", "What is 12 + 30?"), ("assistant", "12 + 30 is 42.")],
        [("user", "hm"), ("assistant", "Yes?")],
    ]
    return [
        encode_dialogue(build_tokenizer(), Dialogue(tuple(Message(*m) for m in chat), f"made:{i}"))
        for i, chat in enumerate(chats, 1)
    ]
