"""The outside baseline: the same network under transformers' own `generate`.

Knows nothing about this project's engine.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria

from marslm.bench.plain_answer import plain_answer
from marslm.engine.api import Answer
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams


class _Clock(StoppingCriteria):
    """Notes when each token was ready; stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def with_stock_layout(model: MarsModel) -> MarsModel:
    """Return the model with a copy of its network whose weights lie as transformers lays them out.

    A decoder fuses and transposes the weights of the network that it is given, so measuring that
    network would not measure what users of transformers have.
    """
    network = copy.deepcopy(model.network)
    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()
    return replace(model, network=network)


def generate_with_transformers(
    model: MarsModel, prompts: list[list[int]], params: SamplingParams
) -> tuple[list[Answer], list[tuple[float, int]]]:
    """Return greedy answers and (seconds, tokens) of each decoding forward.

    Raises InputError for more than one prompt at a time or for sampling, which it does not compare.
    """
    if len(prompts) != 1 or params.temperature:
        raise InputError("the transformers baseline is measured greedily, with --batch 1")
    ends = None if params.ignore_eos else sorted(model.end_token_ids)
    [new], seconds = generate_batch(model, prompts, params.max_new_tokens, ends)
    answer = plain_answer(model, prompts[0], new, frozenset(ends or ()))
    return [answer], [(each, 1) for each in seconds]


def generate_batch(
    model: MarsModel, prompts: list[list[int]], max_new_tokens: int, ends: list[int] | None = None
) -> tuple[list[list[int]], list[float]]:
    """Return greedy answers to prompts of one length, and the seconds of each decoding forward."""
    clock = _Clock()
    ids = torch.tensor(prompts, device=model.network.device)
    with _without_own_settings(model.network), torch.inference_mode():
        out: Any = model.network.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=max_new_tokens,
                do_sample=False,
                suppress_tokens=[model.mask_token_id],
                eos_token_id=ends,
                pad_token_id=model.tokenizer.pad_token_id or 0,
            ),
            stopping_criteria=[clock],
        )
    answers = out[:, ids.shape[1] :].tolist()
    return answers, [after - before for before, after in pairwise(clock.times)]


@contextmanager
def _without_own_settings(network: PreTrainedModel) -> Iterator[None]:
    """Put the checkpoint's generation settings aside: penalties are not greedy.

    What `generate` is not told it takes from there, end tokens too.
    """
    own = network.generation_config
    network.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        network.generation_config = own
