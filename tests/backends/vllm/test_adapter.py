"""A mask-only adapter in vLLM's layers, whole and split over ranks; a drafter for stock vLLM."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import recompute_mars
from marslm.models.adapter import read_adapter
from marslm.models.loading import MarsModel

# A start of vLLM takes minutes on a busy machine.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

Run = Callable[..., list[Any]]
TOKENS = 20
TAU = {
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "extra_args": {"mars_mode": "tau", "mars_tau": 0.3},
}
LOSSLESS = {"max_tokens": TOKENS, "ignore_eos": True}
FP8: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "all": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
}


def ids(answers: list[Any]) -> list[list[int]]:
    return [each[0]["ids"] for each in answers]


@pytest.mark.parametrize("ranks", [1, 2])
def test_masks_alone_feel_the_adapter(
    run_engine: Run,
    letters_mars: dict[str, Any],
    letters_model: MarsModel,
    letters_adapter: Path,
    letter_prompts: list[list[int]],
    ranks: int,
) -> None:
    """Mode tau writes what this project's decoder writes with the adapter, lossless what it does
    without: so the rows of masks have it, and no others.
    """
    adapter = read_adapter(letters_adapter)
    model = replace(letters_model, adapter=adapter, record=adapter.record)
    engine = {
        **letters_mars,
        "tensor_parallel_size": ranks,
        "additional_config": {"mars": {"adapter": str(letters_adapter)}},
    }
    tau, lossless = run_engine(
        engine,
        {"prompts": letter_prompts, "params": [TAU]},
        {"prompts": letter_prompts, "params": [LOSSLESS]},
    )
    masks = adapter.record.block_size - 1
    wanted = [recompute_mars(model, each, TOKENS, 0.3, masks) for each in letter_prompts]
    bare = [recompute_mars(letters_model, each, TOKENS, 0.3, masks) for each in letter_prompts]
    assert ids(tau) == wanted != bare
    assert ids(lossless) == [recompute_mars(letters_model, each, TOKENS) for each in letter_prompts]


@pytest.fixture(scope="module")
def quantised(
    letters_plain: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """The letters model as others publish it: `layer` writes a linear layer's weights anew."""

    def write(config: dict[str, Any], layer: Callable[[torch.Tensor], dict[str, Any]]) -> Path:
        folder = tmp_path_factory.mktemp(config["quant_method"]) / "letters"
        shutil.copytree(letters_plain["model"], folder)
        weights = load_file(folder / "model.safetensors")
        for name in [each for each in weights if each.endswith("proj.weight")]:
            for part, values in layer(weights.pop(name)).items():
                weights[f"{name.removesuffix('weight')}{part}"] = values
        save_file(weights, folder / "model.safetensors")
        whole = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**whole, "quantization_config": config}))
        return folder

    return write


def fp8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return FP8 weights with a scale for each output channel."""
    scale = weight.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def awq(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return zeros that load as AWQ weights of the same shape."""
    outputs, inputs = weight.shape
    groups = inputs // AWQ["group_size"]
    return {
        "qweight": torch.zeros(inputs, outputs // 8, dtype=torch.int32),
        "qzeros": torch.zeros(groups, outputs // 8, dtype=torch.int32),
        "scales": torch.ones(groups, outputs, dtype=torch.float16),
    }


@pytest.mark.parametrize("form", ["online", "checkpoint"])
def test_an_adapter_on_fp8_weights(
    run_engine: Run,
    letters_mars: dict[str, Any],
    letters_adapter: Path,
    quantised: Callable[..., Path],
    letter_prompts: list[list[int]],
    form: str,
) -> None:
    """Without masks every bit is the bare model's; lossless writes the same, tau another text."""
    if form == "online":
        engine = {**letters_mars, "dtype": "bfloat16", "quantization": "fp8_per_channel"}
    else:
        engine = {**letters_mars, "dtype": "bfloat16", "model": str(quantised(FP8, fp8))}
    off = {**LOSSLESS, "logprobs": 1, "extra_args": {"mars_mode": "off"}}
    calls = [{"prompts": letter_prompts, "params": [each]} for each in (off, TAU, LOSSLESS)]
    settings = {"mars": {"adapter": str(letters_adapter)}}
    wanted, bare, _ = run_engine(engine, *calls)
    found, tau, lossless = run_engine({**engine, "additional_config": settings}, *calls)
    assert found == wanted
    assert ids(lossless) == ids(wanted)
    assert ids(tau) not in (ids(bare), ids(wanted))


def test_an_adapter_on_awq_weights_is_refused(
    run_engine: Run,
    letters_mars: dict[str, Any],
    letters_adapter: Path,
    quantised: Callable[..., Path],
) -> None:
    engine = {
        **letters_mars,
        "model": str(quantised(AWQ, awq)),
        "dtype": "bfloat16",
        "additional_config": {"mars": {"adapter": str(letters_adapter)}},
    }
    with pytest.raises(AssertionError, match="InputError: a mask-only adapter was not tried on "):
        run_engine(engine)


def test_a_drafter_for_stock_vllm(
    run_engine: Run,
    letters_plain: dict[str, Any],
    letters_model: MarsModel,
    letter_prompts: list[list[int]],
) -> None:
    """vLLM's own parallel drafting with a checkpoint that names its [MASK]; no plugin code runs."""
    drafter = {
        "method": "draft_model",
        "model": letters_plain["model"],
        "num_speculative_tokens": 3,
        "parallel_drafting": True,
    }
    answers, accepted = run_engine(
        {**letters_plain, "speculative_config": drafter, "disable_log_stats": False},
        {"prompts": letter_prompts, "params": [LOSSLESS]},
        {"do": "accepted"},
    )
    assert ids(answers) == [recompute_mars(letters_model, each, TOKENS) for each in letter_prompts]
    # The first draft is the model's own next token, so it is nearly always kept; masks add to it.
    assert accepted[0] > accepted[1] > 0
