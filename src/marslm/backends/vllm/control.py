"""Calls into a running V1 worker, for `collective_rpc`: the counts so far, and live defaults.

`--worker-extension-cls marslm.backends.vllm.control.MarsControl` adds them to vLLM's worker. Knows
nothing about decoding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from marslm.backends.vllm.params import with_values


class MarsControl:
    """Methods that vLLM mixes into its worker."""

    model_runner: Any

    def mars_counters(self) -> dict[str, Any]:
        """Return what was counted since the start, and the tokens per forward."""
        counts: dict[str, Any] = self.model_runner.drafter.drafter.counters.snapshot()
        return counts

    def mars_defaults(self, **values: Any) -> None:
        """Change mode, tau or window of requests that name none; running ones hear it too."""
        proposer = self.model_runner.drafter
        settings = proposer.settings
        defaults = with_values(settings.defaults, values, settings.width)
        proposer.settings = replace(settings, defaults=defaults)
