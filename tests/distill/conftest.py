"""A writer that says what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from marslm.distill.writers import Prompt, Request, Sampling, TokensHeard, Written

Script = Callable[[Prompt, int], Written]


class ScriptedWriter:
    """Writes `script(prompt, seed)`; the last request finishes first. Keeps what was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Request] = []
        self.samplings: list[Sampling] = []

    def write(
        self, requests: Sequence[Request], sampling: Sampling, heard: TokensHeard
    ) -> Iterator[tuple[Request, Written]]:
        for request in reversed(requests):
            self.asked.append(request)
            self.samplings.append(sampling)
            written = self.script(request.prompt, request.seed)
            heard(written.tokens)
            yield request, written


@pytest.fixture
def scripted() -> Callable[[Script], ScriptedWriter]:
    return ScriptedWriter
