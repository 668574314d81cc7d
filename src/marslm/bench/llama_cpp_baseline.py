"""The outside baseline on a CPU: the same GGUF file under llama.cpp.

Needs llama-cpp-python, which `pip` compiles. Knows nothing about this project's engine.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from marslm.bench.plain_answer import plain_answer
from marslm.engine.api import Answer
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.models.short_names import smollm2_file
from marslm.runtime.params import SamplingParams


def gguf_file(name: str) -> Path:
    """Return the GGUF file of a model; InputError if it has none."""
    if name == "smollm2":
        return smollm2_file()
    path = Path(name).expanduser()
    if path.suffix != ".gguf":
        raise InputError(f"llama.cpp reads GGUF files, not {name!r}: name a .gguf file or smollm2")
    return path


def load_llama_cpp(model: MarsModel, length: int) -> Any:
    """Return llama.cpp's model for contexts of `length` tokens, with as many threads as torch."""
    try:
        from llama_cpp import Llama  # noqa: PLC0415 - optional
    except ImportError as error:
        raise InputError(
            "the llama-cpp baseline needs llama-cpp-python: pip install 'marslm[llama-cpp]' "
            "(it compiles for some minutes)"
        ) from error
    threads = torch.get_num_threads()
    return Llama(
        model_path=str(gguf_file(model.name)),
        n_ctx=length,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )


def generate_with_llama_cpp(
    llama: Any, model: MarsModel, prompts: list[list[int]], params: SamplingParams
) -> tuple[list[Answer], list[tuple[float, int]]]:
    """Return greedy answers and (seconds, tokens) of each decoding forward.

    Raises InputError for more than one prompt at a time or for sampling, which it does not compare.
    """
    if len(prompts) != 1 or params.temperature:
        raise InputError("the llama-cpp baseline is measured greedily, with --batch 1")
    ends = frozenset() if params.ignore_eos else model.end_token_ids
    new: list[int] = []
    times: list[float] = []
    for token in llama.generate(prompts[0], top_k=1, temp=0.0, repeat_penalty=1.0, reset=True):
        new.append(int(token))
        times.append(time.perf_counter())
        if token in ends or len(new) == params.max_new_tokens:
            break
    answer = plain_answer(model, prompts[0], new, ends)
    return [answer], [(after - before, 1) for before, after in pairwise(times)]
