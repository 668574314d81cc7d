"""Adapters from training to disk and back, beside PEFT's own reading of the same files."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from helpers import build_network
from marslm.errors import InputError
from marslm.models.adapter import read_adapter
from marslm.models.loading import MarsModel, load
from marslm.models.tiny import build_tokenizer
from marslm.train.config import LORA_TARGETS

TEXT = torch.tensor([build_tokenizer().encode("What is said here?")])


@pytest.fixture(scope="module")
def lora(base_folder: Path, train_into: Callable[..., Path]) -> Path:
    return train_into(load(str(base_folder)), "lora")


@pytest.fixture(scope="module")
def mask_only(base_folder: Path, train_into: Callable[..., Path]) -> Path:
    return train_into(load(str(base_folder)), "mask-only")


def logits_of(model: MarsModel, *, masks: int = 0) -> Tensor:
    ids = torch.cat([TEXT, torch.full((1, masks), model.mask_token_id)], dim=1)
    with torch.no_grad():
        logits: Tensor = model.network(input_ids=ids).logits
    return logits


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_merged_adapter_is_what_peft_computes(
    save_model: Callable[..., Path], train_into: Callable[..., Path], architecture: str
) -> None:
    base = save_model(architecture)
    folder = train_into(load(str(base)), "lora")
    merged = load(str(base), adapter=folder)
    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(network, folder).eval()
    ids = torch.cat([TEXT, torch.full((1, 3), merged.mask_token_id)], dim=1)
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
        plain = load(str(base)).network(input_ids=ids).logits
    ours = logits_of(merged, masks=3)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert (ours - plain).abs().max() > 0.1


def test_a_merged_adapter_leaves_an_ordinary_model(base_folder: Path, lora: Path) -> None:
    model = load(str(base_folder), adapter=lora)
    assert model.adapter is None
    assert model.record is not None
    assert model.record.mode == "lora"
    assert set(dict(model.network.named_modules())) == set(
        dict(load(str(base_folder)).network.named_modules())
    )


def test_a_mask_only_adapter_stays_beside_a_bit_identical_base(
    base_folder: Path, mask_only: Path
) -> None:
    base, model = load(str(base_folder)), load(str(base_folder), adapter=mask_only)
    for name, weight in base.network.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], weight), name
    assert torch.equal(logits_of(model, masks=2), logits_of(base, masks=2))
    assert model.adapter is not None
    assert set(model.adapter.updates) == {
        f"model.layers.{layer}.{part}.{name}"
        for layer in range(2)
        for name in LORA_TARGETS
        for part in ["self_attn" if name[0] in "qkvo" else "mlp"]
    }
    assert all(update.up.any() for update in model.adapter.updates.values())
    row = base.network.get_input_embeddings().weight[base.mask_token_id]
    assert not torch.equal(model.adapter.mask_embedding, row)


def test_peft_refuses_a_mask_only_adapter(base_folder: Path, mask_only: Path) -> None:
    """It would apply the update to every row and write garbage without a word."""
    network = AutoModelForCausalLM.from_pretrained(base_folder)
    with pytest.raises((KeyError, ValueError), match="MASK_ONLY_LORA"):
        PeftModel.from_pretrained(network, mask_only)


@pytest.mark.parametrize("kind", ["lora", "mask_only"])
def test_what_lies_in_the_folder(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "checkpoints",
        "mars.json",
    ]
    weights = load_file(folder / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    # Two matrices for each linear, and one row of the embedding.
    assert len(weights) == 2 * 7 * 2 + 1
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == config["lora_alpha"] == 4
    assert set(config["target_modules"]) == set(LORA_TARGETS)
    assert (config["peft_type"] == "LORA") is (kind == "lora")


def test_the_record_says_how_it_was_trained(base_folder: Path, mask_only: Path) -> None:
    record = json.loads((mask_only / "mars.json").read_text())
    training = record.pop("training")
    assert record.pop("base").keys() == {"architecture", "tokenizer", "weights"}
    assert record == {
        "mode": "mask-only",
        "mask_token_id": 259,
        "block_size": 5,
        "block_start": "clean",
        "attention": "causal",
        "alignment": "next",
        "order": "left_to_right",
    }
    assert training["base_model"] == str(base_folder)
    assert (training["examples"], training["steps"], training["kl_weight"]) == (2, 2, 0.5)


def test_reading_gives_what_was_written(mask_only: Path) -> None:
    weights = load_file(mask_only / "adapter_model.safetensors")
    adapter = read_adapter(mask_only)
    name = "model.layers.1.mlp.down_proj"
    saved = {end: weights[f"base_model.model.{name}.lora_{end}.weight"] for end in "AB"}
    assert torch.equal(adapter.updates[name].down, saved["A"].float())
    assert torch.equal(adapter.updates[name].up, saved["B"].float())  # alpha / r is 1
    assert adapter.mask_embedding.shape == (32,)


def test_the_scale_is_alpha_over_r(mask_only: Path, copy_of: Callable[[Path], Path]) -> None:
    folder = copy_of(mask_only)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 8}))
    name = "model.layers.0.self_attn.q_proj"
    plain, doubled = read_adapter(mask_only).updates[name], read_adapter(folder).updates[name]
    torch.testing.assert_close(doubled.up @ doubled.down, 2 * (plain.up @ plain.down))


def test_an_adapter_for_another_architecture(
    save_model: Callable[..., Path], mask_only: Path
) -> None:
    wider = save_model("qwen2", hidden_size=64)
    with pytest.raises(InputError, match=r"hidden_size=32 .* hidden_size=64 .*trained on"):
        load(str(wider), adapter=mask_only)
    with pytest.raises(InputError, match=r"model_type=qwen2 .* model_type=llama"):
        load(str(save_model("llama")), adapter=mask_only)


def test_an_adapter_for_another_tokenizer(save_model: Callable[..., Path], mask_only: Path) -> None:
    other = save_model("qwen2")
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["hello"])
    tokenizer.save_pretrained(other)
    with pytest.raises(InputError, match="made for another tokenizer; load the model"):
        load(str(other), adapter=mask_only)


def test_other_weights_of_the_same_model_only_warn(
    save_model: Callable[..., Path], mask_only: Path
) -> None:
    sibling = save_model("qwen2", seed=9)
    with pytest.warns(UserWarning, match="other weights of the same architecture") as caught:
        model = load(str(sibling), adapter=mask_only)
    assert len(caught) == 1
    assert model.adapter is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_models_own_weights_in_another_dtype_do_not_warn(
    base_folder: Path, mask_only: Path, dtype: torch.dtype
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(str(base_folder), adapter=mask_only, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mars.json", None, r"has no mars\.json; give a folder that `marslm tune` wrote"),
        ("mars.json", "{", "cannot be read"),
        ("mars.json", "{}", "cannot be read"),
        ("mars.json", "[]", "cannot be read"),
        ("adapter_config.json", None, "is damaged"),
        ("adapter_config.json", "{}", "is damaged"),
        ("adapter_config.json", "[]", "is damaged"),
        ("adapter_model.safetensors", None, "is damaged"),
        ("adapter_model.safetensors", "not tensors", "is damaged"),
    ],
)
def test_a_damaged_folder(
    mask_only: Path,
    copy_of: Callable[[Path], Path],
    name: str,
    content: str | None,
    said: str,
) -> None:
    folder = copy_of(mask_only)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        read_adapter(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["trainable_tokens_delta", "0.mlp.up_proj.lora_B"])
def test_an_adapter_with_a_tensor_missing(
    mask_only: Path, copy_of: Callable[[Path], Path], missing: str
) -> None:
    folder = copy_of(mask_only)
    weights = load_file(folder / "adapter_model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if missing not in name}
    assert len(kept) == len(weights) - 1
    save_file(kept, folder / "adapter_model.safetensors")
    with pytest.raises(InputError, match="is damaged"):
        read_adapter(folder)


def test_no_folder_at_all(base_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no adapter at .*nowhere; give a folder"):
        load(str(base_folder), adapter=tmp_path / "nowhere")


def test_a_whole_model_is_no_adapter(base_folder: Path, train_into: Callable[..., Path]) -> None:
    folder = train_into(load(str(base_folder)), "full")
    with pytest.raises(InputError, match="holds a whole model, not an adapter; load it with"):
        load(str(base_folder), adapter=folder)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_fully_trained_model_is_an_ordinary_checkpoint(
    save_model: Callable[..., Path], train_into: Callable[..., Path], architecture: str
) -> None:
    trained = load(str(save_model(architecture)))
    folder = train_into(trained, "full")
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    ours = load(str(folder))
    expected = logits_of(trained, masks=2)
    with torch.no_grad():
        ids = torch.cat([TEXT, torch.full((1, 2), ours.mask_token_id)], dim=1)
        torch.testing.assert_close(theirs(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits_of(ours, masks=2), expected, rtol=1e-4, atol=1e-4)
    assert ours.record is not None
    assert (ours.record.mode, ours.record.block_size) == ("full", 4)
    assert ours.tokenizer.get_vocab() == trained.tokenizer.get_vocab()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_fully_trained_model_keeps_its_tokenizer(
    train_into: Callable[..., Path], architecture: str
) -> None:
    """AutoTokenizer picks a class by model type, which may normalise text or add tokens."""
    tokenizer = build_tokenizer()
    model = MarsModel("tiny", build_network(architecture, dtype=torch.float32), tokenizer, 259)
    again = load(str(train_into(model, "full"))).tokenizer
    assert again.get_vocab() == tokenizer.get_vocab()
    for text in ("Cafe\u0301 \u212b", " two  spaces\n", "1234<|mask|>5"):
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text)) == text
