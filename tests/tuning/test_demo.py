"""The quick demo, cut down to a few steps and problems: its parts fit together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from helpers import build_model
from marslm.data import arithmetic
from marslm.models.loading import MarsModel
from marslm.train.events import Event, Progress
from marslm.tuning import demo


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(demo.TINY_CONFIG, steps=3, batch_size=4)
    monkeypatch.setattr(demo, "TINY_CONFIG", config)
    monkeypatch.setattr(demo, "_TRAINING_PROBLEMS", 20)
    monkeypatch.setattr(demo, "_HELD_OUT_PROBLEMS", 3)


def test_training_replaces_an_earlier_demos_folder(tmp_path: Path) -> None:
    heard: list[Event] = []
    first = demo.train_tiny(tmp_path / "tiny", heard.append)
    assert first.record is not None
    assert (first.record.mode, first.record.block_size) == ("full", demo.TINY_CONFIG.block_size)
    assert [event.step for event in heard if isinstance(event, Progress)] == [1, 2, 3]
    demo.train_tiny(tmp_path / "tiny", heard.append)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_demo_that_is_interrupted_keeps_the_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "old").touch()

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.train_tiny(folder, interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    assert [path.name for path in folder.iterdir()] == ["old"]


def test_held_out_sums_are_decoded_in_every_way() -> None:
    heard: list[int] = []
    result = demo.decode_tiny(build_model("llama"), heard.append)
    _, problems = arithmetic.split(20, 3, seed=0)
    assert list(result.prompts) == [problem.question for problem in problems]
    assert [row["strategy"] for row in result.rows] == ["ar", "mars", "lossless"]
    assert heard == [1, 2, 3]
    assert result.rows[0]["identical_to_ar"] == result.rows[2]["identical_to_ar"] == 1
    for row in result.rows:
        assert row["model"] == "tiny"
        assert row["accuracy"] == 0  # nothing was learned
        assert len(result.answers[str(row["strategy"])]) == 3
        json.dumps(row)


def test_accuracy_counts_right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter([True, False, True] * 3)
    monkeypatch.setattr(arithmetic, "is_correct", lambda problem, text: next(verdicts))
    rows = demo.decode_tiny(build_model("llama"), lambda done: None).rows
    assert [row["accuracy"] for row in rows] == [2 / 3] * 3


def test_chat_prompts_are_decoded_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "CHAT_PROMPTS", ("Hi", "Who?"))
    model: MarsModel = build_model("llama")
    result = demo.decode_chat(model, lambda done: None)
    assert [row["strategy"] for row in result.rows] == ["ar", "mars", "lossless"]
    assert {row["model"] for row in result.rows} == {model.name}
    assert {name: len(answers) for name, answers in result.answers.items()} == {
        "ar": 2,
        "mars": 2,
        "lossless": 2,
    }
