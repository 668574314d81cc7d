"""One training run as a script, for tests that start it in processes of their own.

Usage: processes.py FOLDER [name=value ...]; the losses go to FOLDER/losses.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from marslm.data.dialogues import Dialogue, Message
from marslm.data.encode import Example, encode_dialogue
from marslm.models.loading import MarsModel
from marslm.models.tiny import build_model, build_tokenizer
from marslm.train.config import TuneConfig
from marslm.train.events import Event, Progress
from marslm.train.run import train

SETTINGS: dict[str, Any] = {"steps": 5, "batch_size": 4, "learning_rate": 1e-3, "rank": 4}


def make_examples() -> list[Example]:
    """Return twelve texts of unequal length."""
    tokenizer = build_tokenizer()
    chats = [("x" * (1 + n % 5), "abcdefghijkl"[: 2 + 3 * n % 11]) for n in range(12)]
    return [
        encode_dialogue(
            tokenizer, Dialogue((Message("user", asked), Message("assistant", answer)), f"{n}")
        )
        for n, (asked, answer) in enumerate(chats)
    ]


def run(folder: Path, **settings: Any) -> list[float]:
    """Train a small model; return the losses that this process heard."""
    torch.set_num_threads(1)
    mode = settings.pop("mode", "full")
    resume = settings.pop("resume", False)
    die_after = settings.pop("die_after", None)
    network, tokenizer = build_model(hidden_size=32, layers=2), build_tokenizer()
    model = MarsModel("small", network, tokenizer, int(tokenizer.mask_token_id))
    config = TuneConfig.for_mode(mode, **{**SETTINGS, **settings})
    losses: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, Progress):
            losses.append(event.loss)
            # At once: the process may be killed.
            (folder / "losses.json").write_text(json.dumps(losses))
            if event.step == die_after:
                os.kill(os.getpid(), 9)

    train(model, make_examples(), config, folder, resume=resume, listener=listen)
    return losses


if __name__ == "__main__":
    target = Path(sys.argv[1])
    given = {name: json.loads(value) for name, value in (a.split("=", 1) for a in sys.argv[2:])}
    run(target, **given)
