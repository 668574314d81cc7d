"""How one request is decoded: mode, threshold and window, from vLLM's `extra_args`.

Knows nothing about vLLM itself; over HTTP the same keys come as `vllm_xargs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from marslm.errors import InputError

Mode: TypeAlias = Literal["off", "lossless", "tau"]

PREFIX = "mars_"
_TAU_BY_MODE = {"off": 1.0, "lossless": 0.0, "tau": 0.9}


@dataclass(frozen=True)
class MarsParams:
    """Settings of a request.

    mode: "off" is one token a step; "lossless" has vLLM verify the drafts; "tau" keeps those drafts
        unverified whose probability reached tau.
    tau: in mode "tau", what a draft needs to be kept, above 0 and at most 1; 1 is one token a step
        by rule. In "lossless", what a draft needs to be tried, from 0. None: 0.9 and 0.
    window: B, the candidates of a step: the next token and one for each of B-1 masks.
    """

    mode: Mode = "lossless"
    tau: float | None = None
    window: int = 2

    @property
    def threshold(self) -> float:
        """The probability from which a draft is taken."""
        return _TAU_BY_MODE[self.mode] if self.tau is None else self.tau

    @property
    def masks(self) -> int:
        """How many masks a step carries; none where no draft could be taken."""
        return 0 if self.mode == "off" or self.threshold >= 1 else self.window - 1


def with_values(defaults: MarsParams, values: Mapping[str, Any], most_masks: int) -> MarsParams:
    """Return `defaults` with the given mode, tau and window in place; InputError if one is bad.

    most_masks: `num_speculative_tokens`, the most that one step can carry.
    """
    unknown = sorted(values.keys() - {"mode", "tau", "window"})
    if unknown:
        raise InputError(f"no setting {PREFIX}{unknown[0]}: there are mode, tau and window")
    params = replace(defaults, **values)
    if "mode" in values and "tau" not in values and params.mode != defaults.mode:
        params = replace(params, tau=None)  # another mode's threshold means something else
    _check(params, most_masks)
    return params


def request_params(
    extra_args: Mapping[str, Any] | None, defaults: MarsParams, most_masks: int
) -> MarsParams:
    """Return the settings of a request, whose `extra_args` may name mars_mode, mars_tau, ..."""
    ours = {
        key.removeprefix(PREFIX): value
        for key, value in (extra_args or {}).items()
        if key.startswith(PREFIX)
    }
    return with_values(defaults, ours, most_masks) if ours else defaults


def _check(params: MarsParams, most_masks: int) -> None:
    if params.mode not in get_args(Mode):
        raise InputError(f"mars_mode is {params.mode!r}: choose {', '.join(get_args(Mode))}")
    tau = params.threshold
    if isinstance(tau, bool) or not isinstance(tau, int | float):
        raise InputError(f"mars_tau is {tau!r}: give a number above 0 and at most 1")
    if not (0 < tau <= 1 or (tau == 0 and params.mode == "lossless")):
        raise InputError(f"mars_tau is {tau}: give a value above 0 and at most 1")
    if type(params.window) is not int or not 2 <= params.window <= most_masks + 1:
        raise InputError(
            f"mars_window is {params.window!r}: give a whole number from 2 to {most_masks + 1}, "
            "one more than num_speculative_tokens"
        )
