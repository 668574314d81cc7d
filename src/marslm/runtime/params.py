"""What a caller may ask of one request.

Knows nothing about how requests are run.
"""

from __future__ import annotations

from dataclasses import dataclass

from marslm.core.accept import CONFIDENCES, check_tau
from marslm.errors import InputError


@dataclass(frozen=True)
class SamplingParams:
    """How to answer one prompt.

    max_new_tokens: length cap of the answer, in tokens.
    temperature: 0 is greedy.
    seed: with the position in the text, it decides every draw, whatever else runs in the batch.
    stop: strings that end the answer; they are not part of it.
    ignore_eos: write on to max_new_tokens, for measurements.
    strategy: a registered name; None follows the engine's default.
    tau: acceptance threshold in (0, 1]; None follows the engine's live knob.
    block: B, the candidates of one step; None takes the trained one.
    confidence: "probability", "margin" or "entropy".
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    strategy: str | None = None
    tau: float | None = None
    block: int | None = None
    confidence: str = "probability"

    def __post_init__(self) -> None:
        """Raise InputError for a value that cannot be meant."""
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}: give at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature is {self.temperature}: give 0 (greedy) or more")
        if isinstance(self.stop, str):  # type: ignore[unreachable]
            raise InputError(f"stop is one text: give a tuple, such as ({self.stop!r},)")
        if not all(self.stop):
            raise InputError("a stop string is empty: leave it out")
        if self.tau is not None:
            check_tau(self.tau)
        if self.block is not None and self.block < 1:
            raise InputError(f"block is {self.block}: give at least 1 (1 = one token a step)")
        if self.confidence not in CONFIDENCES:
            raise InputError(
                f"confidence is {self.confidence!r}: choose from {', '.join(CONFIDENCES)}"
            )
