"""The interface between the engine and a decoding strategy.

Per step and request the engine feeds the pending tokens followed by the strategy's window, and
gives the strategy the logits of the last pending token and of every window entry. Knows nothing
about how the forward is run.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from marslm.runtime.sequence import Sequence


@dataclass(frozen=True)
class Outcome:
    """What a step brought one request.

    new_tokens: accepted tokens, left to right, at least one. kept: how many leading window entries
    are among them, so that their keys and values stay in the cache.
    """

    new_tokens: list[int]
    kept: int = 0


@dataclass(frozen=True)
class StepSettings:
    """What the engine tells a strategy about one request at this step.

    block: B. tau: the request's own threshold, or the live knob's value now.
    """

    block: int
    tau: float


class Strategy(Protocol):
    """A way to decode. One object serves all requests; per-request state lives in the sequence.

    exact: whether its output equals one-token decoding's.
    """

    name: str
    exact: bool

    def propose(self, sequence: Sequence, settings: StepSettings) -> ListOf[int]:
        """Return the window: drafts, [MASK]s, both or nothing."""

    def accept(
        self, sequence: Sequence, window: ListOf[int], logits: Tensor, settings: StepSettings
    ) -> Outcome:
        """Decide what to keep.

        logits: [1 + len(window), V]; row 0 is the last pending token's, row i window entry i-1's.
        The window may be shorter than proposed where the text nears its limit.
        """
