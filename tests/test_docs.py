"""What the documents show works: Python snippets run, and every command line parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from marslm.cli.app import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "recipes").glob("*/README.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (where, text) of each fenced block of a language in the documents."""
    return [
        (f"{path.name}:{text.count(chr(10), 0, match.start()) + 1}", match[2])
        for path in DOCUMENTS
        for text in [path.read_text(encoding="utf-8")]
        for match in FENCE.finditer(text)
        if match[1] == language
    ]


def command_lines() -> list[tuple[str, str]]:
    joined = [(where, block.replace("\\\n", " ")) for where, block in blocks("")]
    return [
        (where, line.partition("#")[0].strip())
        for where, block in joined
        for line in block.splitlines()
        if re.match(r"(\w+=\S+ )*(\.venv/bin/)?marslm ", line)
    ]


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=lambda value: value[:30])
def test_python_snippets_run(where: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    exec(compile(code, where, "exec"), {})


@pytest.mark.parametrize(("where", "line"), command_lines(), ids=lambda value: value[:60])
def test_command_lines_parse(where: str, line: str) -> None:
    words = shlex.split(line)
    while "=" in words[0]:  # the environment
        words.pop(0)
    command, arguments = get_command(app), words[1:]
    while hasattr(command, "commands"):
        if command.invoke_without_command and arguments[0].startswith("-"):
            break  # a command by itself, with others under it
        name = arguments.pop(0)
        assert name in command.commands, f"{where}: no command {name!r}"
        command = command.commands[name]
    context = command.make_context(name, arguments)  # an unknown option raises here
    assert context.params


def test_there_are_snippets_and_commands_to_check() -> None:
    assert len(blocks("python")) >= 3
    assert len(command_lines()) >= 5


def test_make_targets_named_in_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in DOCUMENTS:
        for target in re.findall(r"make ([a-z][a-z0-9-]+)", path.read_text(encoding="utf-8")):
            assert f"\n{target}:" in makefile, f"{path.name} names make {target}"


def test_files_named_in_paper_to_code_exist() -> None:
    text = (ROOT / "docs" / "paper_to_code.md").read_text(encoding="utf-8")
    for name in re.findall(
        r"`((?:core|evaluation|models|runtime|strategies|train|tests)/[\w/.]+)`", text
    ):
        place = ROOT / name if name.startswith("tests/") else ROOT / "src" / "marslm" / name
        assert place.exists(), name
