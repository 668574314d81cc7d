"""The strategies of one engine by name, each built when it is first asked for.

The knob asks too, from other threads, before it is turned to one. Knows nothing about requests.
"""

from __future__ import annotations

from marslm.engine.admission import check_served
from marslm.strategies.base import EngineFacts, Strategy
from marslm.strategies.registry import create_strategy


class Strategies:
    """Builds and keeps them."""

    def __init__(self, facts: EngineFacts) -> None:
        """Build none yet; facts: what they are built from."""
        self._facts = facts
        self._built: dict[str, Strategy] = {}

    def __getitem__(self, name: str) -> Strategy:
        """Return the strategy of that name; InputError if it does not exist or cannot be built."""
        if name not in self._built:
            # If two threads build one at once, both get the same.
            self._built.setdefault(name, create_strategy(name, self._facts))
        return self._built[name]

    def check(self, name: str) -> None:
        """Raise InputError for a strategy that cannot decode with this engine's model."""
        check_served(self._facts.model, self[name])
