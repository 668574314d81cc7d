"""The plugin's counts among vLLM's metrics.

The worker is not the process that serves `/metrics`: the counts show there when
PROMETHEUS_MULTIPROC_DIR names an empty folder before vLLM starts. Knows nothing about drafts.
"""

from __future__ import annotations

from prometheus_client import Counter

from marslm.backends.vllm.counters import Counters

_FORWARDS = Counter("marslm:forwards", "Steps of single requests that brought tokens.")
_TOKENS = Counter("marslm:tokens", "Tokens that these steps brought.")
_DRAFTS = Counter("marslm:drafts", "Drafts that were tried; masks are no drafts.")
_ACCEPTED = Counter("marslm:drafts_accepted", "Drafts that were kept.")
_AT = Counter(
    "marslm:drafts_accepted_at", "Drafts that were kept, by place after the last token.", ["place"]
)


class Metrics:
    """Brings Prometheus' counters up to a `Counters`."""

    def __init__(self) -> None:
        """Begin where a new `Counters` begins."""
        self._shown = Counters()

    def show(self, counters: Counters) -> None:
        """Add what was counted since the last call."""
        before = self._shown
        _FORWARDS.inc(counters.forwards - before.forwards)
        _TOKENS.inc(counters.tokens - before.tokens)
        _DRAFTS.inc(counters.drafts - before.drafts)
        _ACCEPTED.inc(counters.accepted - before.accepted)
        before.by_position += [0] * (len(counters.by_position) - len(before.by_position))
        for place, count in enumerate(counters.by_position):
            _AT.labels(place + 1).inc(count - before.by_position[place])
        self._shown = counters.copy()
