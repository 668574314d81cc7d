"""The command line in this process, and small models and data for it."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import build_network
from marslm.cli.app import main
from marslm.models.tiny import build_tokenizer

CHATS = [
    {"prompt": "One and one?", "response": "Two."},
    {"messages": [{"role": "user", "content": "Hm"}, {"role": "assistant", "content": "Yes?"}]},
    {"question": "2+3?", "answer": "2+3=<<2+3=5>>5"},
    {"prompt": "Name a cat.", "response": "Tom"},
    {"prompt": "Name another.", "response": "Felix"},
]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that runs `marslm` with arguments, as the installed command does."""
    for name, value in {
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MARSLM_DATA", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    # The command sets these before transformers is imported, which reads some of them only then.
    monkeypatch.setattr("transformers.utils.logging._tqdm_active", False)

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["marslm", *map(str, arguments)])
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            with pytest.raises(SystemExit) as ended:
                main()
        out, err = capfd.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else int(code is not None), out, err)

    return run


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a small model and its tokenizer to a folder of its own."""

    def save(architecture: str = "llama", *, word: str | None = None, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp(architecture)
        build_network(architecture, dtype=torch.float32, **options).save_pretrained(folder)
        tokenizer = build_tokenizer()
        if word:
            tokenizer.add_tokens([word])
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def model_folder(save_model: Callable[..., Path]) -> Path:
    return save_model("llama", seed=3)


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a JSONL file; a string is a line as it stands."""

    def write(rows: Sequence[object] = CHATS, name: str = "chats.jsonl") -> Path:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def adapter_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mask-only adapter for the small model, three steps young."""
    from marslm.data.dialogues import Dialogue, Message  # noqa: PLC0415
    from marslm.data.encode import encode_dialogue  # noqa: PLC0415
    from marslm.models.loading import load  # noqa: PLC0415
    from marslm.train.config import TuneConfig  # noqa: PLC0415
    from marslm.train.run import train  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("adapter")
    model = load(str(model_folder))
    chat = (Message("user", "Say it."), Message("assistant", "several tokens at once"))
    examples = [encode_dialogue(model.tokenizer, Dialogue(chat, "made:1"))] * 2
    config = TuneConfig.for_mode("mask-only", steps=3, batch_size=2, rank=2)
    train(model, examples, config, folder)
    return folder
