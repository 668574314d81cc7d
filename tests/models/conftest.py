"""Small models on disk, and adapters trained on them for two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import build_network
from marslm.data.dialogues import Dialogue, Message
from marslm.data.encode import encode_dialogue
from marslm.models.loading import MarsModel
from marslm.models.tiny import build_tokenizer
from marslm.train.config import TuneConfig
from marslm.train.run import train

SaveModel = Callable[..., Path]


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> SaveModel:
    """Return a function that writes a small model and its tokenizer to a folder of its own."""

    def save(architecture: str = "qwen2", **options: Any) -> Path:
        folder = tmp_path_factory.mktemp(architecture)
        network = build_network(architecture, dtype=torch.float32, **options)
        network.save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def base_folder(save_model: SaveModel) -> Path:
    """A Qwen2 model, tied as real small ones are."""
    return save_model("qwen2")


@pytest.fixture(scope="session")
def train_into(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that trains for two steps and returns the folder of the result."""

    def run(model: MarsModel, mode: str) -> Path:
        folder = tmp_path_factory.mktemp(mode)
        chat = (Message("user", "Say it."), Message("assistant", "several tokens at once"))
        examples = [encode_dialogue(model.tokenizer, Dialogue(chat, "made:1"))] * 2
        # A high rate, so that two steps leave a mark that a wrong merge would miss.
        settings = {"steps": 2, "batch_size": 2, "rank": 4, "learning_rate": 0.05}
        train(model, examples, TuneConfig.for_mode(mode, **settings), folder)  # type: ignore[arg-type]
        return folder

    return run
