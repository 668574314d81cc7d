"""What a caller may ask of one request.

Knows nothing about how requests are run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marslm.core.accept import CONFIDENCES, Tau, check_tau
from marslm.errors import InputError

MAX_LOGPROBS = 20
"""The most alternatives that a request may list for each token."""


@dataclass(frozen=True)
class SamplingParams:
    """How to answer one prompt.

    The distribution that tokens are drawn from, in this order: logit_bias, the penalties, the ban
    on ending before min_tokens, temperature, top_k, top_p, min_p. Each acts at every position of a
    step with the text that this position would follow.

    max_new_tokens: length cap of the answer, in tokens.
    min_tokens: before so many, neither an end token nor a stop string ends the answer.
    temperature: 0 is greedy.
    top_k: draw from the k likeliest tokens; 0 for all.
    top_p: draw from the likeliest tokens that together reach this share; 1 for all.
    min_p: draw from tokens at least this fraction as likely as the likeliest.
    repetition_penalty: divides positive logits of tokens in prompt or answer, multiplies negative.
    frequency_penalty, presence_penalty: taken off the logit of a token for each time, or once,
        that the answer has it.
    logit_bias: token id -> what is added to its logit; -inf bans it, except where a grammar admits
        banned tokens alone.
    seed: with the position in the text, it decides every draw, whatever else runs in the batch.
    logprobs: None, or how many of the likeliest tokens to list beside each token's own
        log-probability, under the model's own distribution.
    stop: strings that end the answer; they are not part of it.
    stop_token_ids: tokens that end the answer, besides the model's own end tokens.
    ignore_eos: the model's own end tokens end nothing, for measurements.
    regex, json_schema: the answer matches this regular expression, or is JSON that this schema (a
        text or a mapping) admits; needs the extra `constrained`.
    strategy: a registered name; None follows the engine's default.
    tau: acceptance threshold in (0, 1], or one for each mask; "auto:0.02" takes those that
        `marslm calibrate` found for at most 2 % disagreement with one-token decoding; None follows
        the engine's live knob.
    block: B, the candidates of one step; None takes the trained one, "full" all that is left of the
        answer (jacobi).
    confidence: "probability", "margin" or "entropy".
    """

    max_new_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    regex: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    strategy: str | None = None
    tau: Tau | str | None = None
    block: int | Literal["full"] | None = None
    confidence: str = "probability"

    def __post_init__(self) -> None:
        """Raise InputError for a value that cannot be meant."""
        for name, good, wanted in self._ranges():
            if not good:
                raise InputError(f"{name} is {getattr(self, name)}: give {wanted}")
        if isinstance(self.stop, str):  # type: ignore[unreachable]
            raise InputError(f"stop is one text: give a tuple, such as ({self.stop!r},)")
        if not all(self.stop):
            raise InputError("a stop string is empty: leave it out")
        if any(math.isnan(bias) or bias == math.inf for bias in self.logit_bias.values()):
            raise InputError("a logit_bias is not a number below infinity: give one, or -inf")
        if isinstance(self.tau, str):
            auto_rate(self.tau)
        elif self.tau is not None:
            check_tau(self.tau)
        if self.confidence not in CONFIDENCES:
            raise InputError(
                f"confidence is {self.confidence!r}: choose from {', '.join(CONFIDENCES)}"
            )

        self._check_constraint()

    def _check_constraint(self) -> None:
        if not self.constrained:
            return
        if self.regex is not None and self.json_schema is not None:
            raise InputError("regex and json_schema are both given: an answer can follow one")
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise InputError(
                    f"{name} and a regex or json_schema contradict each other: an answer that "
                    f"matches has to end; leave out {name}"
                )

    def _ranges(self) -> list[tuple[str, bool, str]]:
        """Return (field, whether its value can be meant, what can be) of the numbers."""
        unbounded = math.inf
        return [
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("min_tokens", self.min_tokens >= 0, "0 (none) or more"),
            ("temperature", 0 <= self.temperature < unbounded, "0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "0 (all) or more"),
            ("top_p", 0 < self.top_p <= 1, "a share above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "a fraction from 0 to 1"),
            (
                "repetition_penalty",
                0 < self.repetition_penalty < unbounded,
                "a number above 0 (1 = none)",
            ),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "a number (0 = none)"),
            ("presence_penalty", math.isfinite(self.presence_penalty), "a number (0 = none)"),
            (
                "logprobs",
                self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
                f"0 to {MAX_LOGPROBS}",
            ),
            (
                "block",
                self.block in (None, "full") or (isinstance(self.block, int) and self.block >= 1),
                "at least 1 (1 = one token a step)",
            ),
        ]

    @property
    def shown_tau(self) -> float | str | None:
        """Tau as a report shows it."""
        return str(self.tau) if isinstance(self.tau, tuple) else self.tau

    @property
    def plain_greedy(self) -> bool:
        """Whether a token is simply the likeliest under the model."""
        return self.temperature == 0 and not self.logit_bias and not self.reads_text

    @property
    def penalised(self) -> bool:
        """Whether tokens that the text has already are less or more likely for it."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )

    @property
    def constrained(self) -> bool:
        """Whether the answer must follow a grammar."""
        return self.regex is not None or self.json_schema is not None

    @property
    def reads_text(self) -> bool:
        """Whether a token's distribution depends on more of the text than the model's own does."""
        return self.penalised or self.constrained or self.min_tokens > 0


def auto_rate(tau: str) -> float:
    """Return the rate of "auto:RATE"; InputError for another text."""
    name, _, rate = tau.partition(":")
    try:
        if name != "auto":
            raise ValueError(tau)
        return float(rate)
    except ValueError as error:
        raise InputError(f"tau is {tau!r}: give a number or auto:RATE, as auto:0.02") from error
