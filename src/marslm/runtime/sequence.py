"""One request while it runs.

A request has no phases: `num_cached` catches up with `len(tokens)`, and a long prompt is only many
pending tokens. Knows nothing about other requests, strategies or time.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import Any

from marslm.runtime.constraint import Constraint
from marslm.runtime.logprobs import TokenLogprobs
from marslm.runtime.params import SamplingParams
from marslm.runtime.stopping import Transcript


class Sequence:
    """Tokens, cursor and counters of one request.

    tokens: prompt and committed answer. num_cached: how many leading tokens have their keys and
    values in the cache; always below len(tokens), so at least one token is pending. slot: the row
    of the cache, None while waiting. strategy, state: the strategy that served the last step, by
    name, and what it remembers. constraint: which tokens may come next, None if any may. runs:
    committed tokens of each forward that brought any. decode_rows: input rows of its forwards after
    the prompt's. fault: the exception that ended it.
    """

    def __init__(
        self,
        number: int,
        prompt: list[int],
        params: SamplingParams,
        transcript: Transcript,
        constraint: Constraint | None = None,
    ) -> None:
        """Start at the prompt with nothing cached."""
        self.number = number
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.transcript = transcript
        self.constraint = constraint
        self.num_cached = 0
        self.slot: int | None = None
        self.strategy: str | None = None
        self.state: Any = None
        self.runs: list[int] = []
        self.decode_rows = 0
        self.fault: Exception | None = None

    @property
    def pending(self) -> list[int]:
        """The tokens whose keys and values are not cached yet."""
        return self.tokens[self.num_cached :]

    @property
    def started(self) -> bool:
        """Whether a step has fed any of its tokens."""
        return self.num_cached > 0 or bool(self.runs)

    @property
    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.transcript.finish_reason is not None

    def commit(self, tokens: list[int], logprobs: ListOf[TokenLogprobs] = ()) -> list[int]:
        """Append accepted tokens up to where the answer ends; return those appended."""
        committed = tokens[: self.transcript.extend(tokens, logprobs)]
        self.tokens.extend(committed)
        self.runs.append(len(committed))
        return committed

    def advance(self, cells: int) -> None:
        """Move the cursor over `cells` more cells that hold real tokens; one stays pending."""
        self.num_cached = min(self.num_cached + cells, len(self.tokens) - 1)
        assert 0 <= self.num_cached < len(self.tokens)
