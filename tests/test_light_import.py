"""Importing the package costs nothing: what is heavy or optional comes when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "peft", "accelerate", "datasets", "typer", "rich"}


def modules_after(code: str) -> set[str]:
    """Return which of the heavy modules a new interpreter holds after `code`."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return HEAVY & set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import marslm; marslm.__version__; marslm.__all__; dir(marslm)", set()),
        ("import marslm; marslm.InputError", set()),
        ("import marslm; marslm.Message", set()),
        ("import marslm.report, marslm.files, marslm.data", set()),
        ("import marslm.cli.app", {"typer", "rich"}),
        ("import marslm.core.masks, marslm.core.losses", {"torch"}),
    ],
)
def test_what_an_import_pulls_in(code: str, allowed: set[str]) -> None:
    assert modules_after(code) <= allowed


def test_decoding_needs_no_training_extra_and_no_terminal() -> None:
    """A plain install has no peft. Accelerate is taken by transformers where it is there."""
    found = modules_after("import marslm; marslm.load; marslm.generate; marslm.Engine")
    assert found - {"accelerate"} == {"torch", "transformers"}
