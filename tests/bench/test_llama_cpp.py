"""The llama.cpp baseline, with a stand-in for llama.cpp: what is asked, timed and reported."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers import letters, solo
from marslm.bench.decode import LLAMA_CPP, DecodeBench, EncodedPrompt
from marslm.bench.llama_cpp_baseline import gguf_file, load_llama_cpp
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)


@pytest.fixture
def llama_cpp(fitted_model: MarsModel, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Install a module whose model answers as ours does; return how models were made."""
    made: list[dict[str, Any]] = []

    class Llama:
        def __init__(self, **options: Any) -> None:
            made.append(options)

        def generate(self, tokens: list[int], **options: Any) -> Iterator[int]:
            assert options["temp"] == 0
            params = replace(PARAMS, strategy="ar", max_new_tokens=20)
            yield from solo(fitted_model, tokens, params).ids

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama))
    return made


def test_it_takes_its_turn_beside_ours(
    fitted_model: MarsModel, llama_cpp: list[dict[str, Any]]
) -> None:
    model = replace(fitted_model, name="some.gguf")
    bench = DecodeBench(model, ["ar", LLAMA_CPP], PARAMS, longest_prompt=8)
    bench.run([EncodedPrompt(letters(8, random.Random(1)), "letters")])
    row = bench.rows()[1]
    assert (row["strategy"], row["block"], row["tokens"], row["forwards"]) == (LLAMA_CPP, 1, 6, 6)
    assert row["identical_to_ar"] == 1
    assert row["tokens_per_second"] is not None
    assert llama_cpp[0]["model_path"] == "some.gguf"
    assert llama_cpp[0]["n_threads"] == torch.get_num_threads()


def test_what_is_refused(fitted_model: MarsModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gguf_file("a/b.gguf") == Path("a/b.gguf")
    with pytest.raises(InputError, match="reads GGUF files, not 'tiny'"):
        gguf_file("tiny")
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(InputError, match="needs llama-cpp-python: pip install"):
        load_llama_cpp(fitted_model, 64)
