"""The names that users may rely on, exactly."""

from __future__ import annotations

import pytest

import marslm


def test_the_public_names() -> None:
    assert marslm.__all__ == [
        "Engine",
        "InputError",
        "MarsModel",
        "Message",
        "SamplingParams",
        "__version__",
        "generate",
        "load",
    ]


def test_every_name_is_there_and_is_its_modules_own() -> None:
    from marslm.data.dialogues import Message  # noqa: PLC0415
    from marslm.engine.api import generate  # noqa: PLC0415
    from marslm.engine.engine import Engine  # noqa: PLC0415
    from marslm.errors import InputError  # noqa: PLC0415
    from marslm.models.loading import MarsModel, load  # noqa: PLC0415
    from marslm.runtime.params import SamplingParams  # noqa: PLC0415

    homes = (Engine, InputError, MarsModel, Message, SamplingParams, generate, load)
    for thing in homes:
        assert getattr(marslm, thing.__name__) is thing
    assert len(homes) == len(marslm.__all__) - 1


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'marslm' has no attribute 'Decoder'"):
        marslm.Decoder  # type: ignore[attr-defined]  # noqa: B018


def test_the_advertised_call() -> None:
    model = marslm.load("tiny")
    prompts = ["What is the capital of France?", [marslm.Message("user", "Hi")], [1, 2, 3]]
    answers = marslm.generate(model, prompts, strategy="lossless", max_new_tokens=4)
    assert [len(answer.ids) <= 4 for answer in answers] == [True] * 3
    assert answers[2].prompt_ids == [1, 2, 3]
    with pytest.raises(marslm.InputError, match="unknown strategy"):
        marslm.generate(model, ["Hi"], strategy="warp")
    assert issubclass(marslm.InputError, ValueError)
