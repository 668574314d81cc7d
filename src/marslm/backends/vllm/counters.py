"""What the plugin did, counted: vLLM's own acceptance rate counts masks as rejected drafts.

Knows nothing about where the counts are shown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass
class Counters:
    """Counts since the start.

    forwards: steps of single requests that brought tokens. tokens: what they brought. drafts: tried
    in them; accepted: kept. by_position: accepted drafts by their place after the last token.
    """

    forwards: int = 0
    tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)

    def add(self, drafts: int, accepted: int, tokens: int) -> None:
        """Count one request's step."""
        self.forwards += 1
        self.tokens += tokens
        self.drafts += drafts
        self.accepted += accepted
        self.by_position += [0] * (accepted - len(self.by_position))
        for position in range(accepted):
            self.by_position[position] += 1

    def copy(self) -> Counters:
        """Return the counts as they are now."""
        return replace(self, by_position=list(self.by_position))

    def snapshot(self) -> dict[str, Any]:
        """Return the counts, and the tokens per forward they amount to."""
        per_forward = self.tokens / self.forwards if self.forwards else None
        return {**asdict(self), "tokens_per_forward": per_forward}
