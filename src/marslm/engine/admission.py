"""What is refused before a request is queued, so that nothing fails in the middle of an answer.

Knows nothing about running requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from marslm.core.accept import Tau
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams, auto_rate
from marslm.strategies.base import Strategy

DEFAULT_BLOCK = 4
"""B for a model without a record, the paper's smallest."""


def trained_block(model: MarsModel) -> int:
    """Return the B that a model was trained with."""
    return model.record.block_size if model.record else DEFAULT_BLOCK


def check_prompt(
    model: MarsModel, prompt: list[int], max_length: int, source: str = "the prompt"
) -> int:
    """Return how many tokens the answer may have; InputError, naming `source`, if none."""
    if not prompt:
        raise InputError(f"{source} is empty: give at least one token")
    _check_token_ids(model, prompt, source)
    room = max_length - len(prompt)
    if room < 1:
        raise InputError(
            f"{source} has {len(prompt)} tokens, and with at least one for the answer that "
            f"is beyond the limit of {max_length}; shorten it or raise the limit "
            f"(the model's context is {model.context_length})"
        )
    return room


def check_params(model: MarsModel, params: SamplingParams, strategy: Strategy) -> None:
    """Raise InputError for parameters that this model or this strategy cannot honour."""
    _check_token_ids(model, params.logit_bias, "logit_bias")
    _check_token_ids(model, params.stop_token_ids, "stop_token_ids")
    check_served(model, strategy)
    if params.block == "full" and not strategy.takes_full_block:
        raise InputError(f"strategy {strategy.name} cannot take block full: give a number")
    refused = refused_fields(model, params, strategy)
    if "block" in refused:
        raise InputError(
            f"block {params.block} is beyond the {trained_block(model)} that {model.name} was "
            "trained for: give at most that, or leave it out"
        )
    if refused:
        raise InputError(
            f"strategy {strategy.name} cannot honour {', '.join(refused)}: leave it out, or use "
            "another strategy, such as lossless"
        )


def check_served(model: MarsModel, strategy: Strategy) -> None:
    """Raise InputError for a strategy that reads masks of a model that has none."""
    if strategy.reads_masks and model.heads is not None:
        raise InputError(
            f"{model.name} was loaded with Medusa heads, which are no training for masks: use "
            "strategy medusa or ar"
        )


def resolve_tau(model: MarsModel, params: SamplingParams) -> Tau | None:
    """Return a request's tau with "auto:RATE" looked up; InputError if it was not calibrated."""
    if not isinstance(params.tau, str):
        return params.tau
    calibration, rate = model.calibration, auto_rate(params.tau)
    if calibration is None:
        raise InputError(
            f"tau {params.tau}: {model.name} is not calibrated; run `marslm calibrate`, or give a "
            "number"
        )
    if calibration.confidence != params.confidence:
        raise InputError(
            f"tau {params.tau} is calibrated for confidence {calibration.confidence}: use that, or "
            "calibrate again"
        )
    return calibration.taus(rate)


def refused_fields(model: MarsModel, params: SamplingParams, strategy: Strategy) -> list[str]:
    """Return the fields that a request sets and that the strategy cannot honour with this model."""
    refused = [
        each.name
        for each in fields(params)
        if each.name in strategy.refuses
        and getattr(params, each.name) != getattr(_DEFAULT, each.name)
    ]
    if not _takes_block(model, params.block, strategy):
        refused.append("block")
    return refused


def _takes_block(model: MarsModel, block: int | str | None, strategy: Strategy) -> bool:
    if isinstance(block, str):  # "full"
        return strategy.takes_full_block
    beyond = block is not None and block > trained_block(model)
    return not (beyond and strategy.reads_masks and model.record is not None)


_DEFAULT = SamplingParams()


def _check_token_ids(model: MarsModel, tokens: Iterable[int], source: str) -> None:
    vocabulary = model.network.config.vocab_size
    if not all(0 <= token < vocabulary for token in tokens):
        raise InputError(f"{source} has token ids outside 0..{vocabulary - 1}")
