"""What each request is fed next, and which of its drafts are kept unread: no vLLM here.

The runner's module lays a step out as windows and calls `forced`, `read` and `propose` in turn.
Knows nothing about sampling, caches or scheduling.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from torch import Tensor

from marslm.backends.vllm.counters import Counters
from marslm.backends.vllm.drafts import (
    confident_prefix,
    leading_drafts,
    most_likely,
    own_drafts,
    proposal,
    readable_masks,
)
from marslm.backends.vllm.params import MarsParams


@dataclass(frozen=True)
class Step:
    """One request's part of a step: what vLLM fed after its last token."""

    request_id: str
    params: MarsParams
    window: list[int]


class Drafter:
    """The drafts of all running requests.

    Only what `propose` handed out may be kept unread; anything else that vLLM feeds in its place
    is verified like anybody's draft.
    """

    def __init__(self, mask_token_id: int, width: int) -> None:
        """Begin with no requests; `width` is the most entries of a window."""
        self.counters = Counters()
        self._mask = mask_token_id
        self._width = width
        self._fresh: dict[str, list[int]] = {}
        self._trusted: dict[str, list[int]] = {}

    def forced(self, steps: ListOf[Step]) -> tuple[list[int], list[int]]:
        """Return the rows whose draft is kept unread, among all window entries, and the drafts."""
        rows: list[int] = []
        tokens: list[int] = []
        first = 0
        for step in steps:
            proposed = self._trusted.pop(step.request_id, None)
            if proposed is not None:
                own = own_drafts(step.window, proposed, self._mask)
                rows += range(first, first + own)
                tokens += step.window[:own]
            first += len(step.window)
        return rows, tokens

    def read(self, steps: ListOf[Step], kept: ListOf[int], logits: Tensor) -> None:
        """Read the next drafts from the masks behind what was kept.

        kept: accepted window entries of each request. logits: [R, V], for each request the row of
        its last token and one for each window entry.
        """
        places: list[tuple[Step, list[int]]] = []
        first = 0
        for step, count in zip(steps, kept, strict=True):
            masks = readable_masks(step.window, count, self._mask)[: step.params.masks]
            places.append((step, [first + row for row in masks]))
            first += 1 + len(step.window)
            self._fresh[step.request_id] = []
            if count >= 0:
                drafts = leading_drafts(step.window, self._mask)
                self.counters.add(drafts, min(count, drafts), count + 1)
        rows = [row for _, of_request in places for row in of_request]
        if rows:
            self._keep_confident(places, *most_likely(logits[rows]))

    def _keep_confident(
        self,
        places: ListOf[tuple[Step, list[int]]],
        tokens: list[int],
        probabilities: list[float],
    ) -> None:
        first = 0
        for step, rows in places:
            mine = slice(first, first + len(rows))
            self._fresh[step.request_id] = confident_prefix(
                tokens[mine], probabilities[mine], step.params.threshold
            )
            first += len(rows)

    def propose(self, request_id: str, params: MarsParams) -> list[int]:
        """Return the window that follows the request's newest token; empty for one token a step."""
        drafts = self._fresh.pop(request_id, [])
        if not params.masks:
            return []
        window = proposal(drafts, params.masks, self._mask, self._width)
        if params.mode == "tau":
            self._trusted[request_id] = window
        return window

    def forget_all_but(self, running: Container[str]) -> None:
        """Drop what is remembered of requests that ended."""
        self._trusted = {name: each for name, each in self._trusted.items() if name in running}
        self._fresh = {name: each for name, each in self._fresh.items() if name in running}
