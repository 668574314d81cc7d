"""`marslm --svg FILE COMMAND`: a picture of what the command printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from marslm.cli.render import console

Cli = Callable[..., Any]


@pytest.mark.parametrize("joined", [False, True])
def test_a_picture_shows_the_command_and_its_output(cli: Cli, tmp_path: Path, joined: bool) -> None:
    picture = tmp_path / "new" / "info.svg"
    option = [f"--svg={picture}"] if joined else ["--svg", picture]
    result = cli(*option, "info", "--model", "tiny")
    assert result.code == 0, result.err
    shown = " ".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    assert "marslm info --model tiny" in shown
    words = [word for word in result.out.split() if word.isalpha()]
    assert len(words) > 5
    assert all(word in shown for word in words)
    assert not console.record


def test_a_place_that_cannot_be_written_is_refused_at_once(cli: Cli, tmp_path: Path) -> None:
    result = cli("--svg", tmp_path, "info", "--model", "tiny")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "no file can be written there" in result.err
    assert result.out == ""
