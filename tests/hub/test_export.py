"""A merged export is a stock checkpoint that computes what the adapter's model computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import build_network
from marslm.data.dialogues import Dialogue, Message
from marslm.data.encode import encode_dialogue
from marslm.errors import InputError
from marslm.hub.export import export_merged
from marslm.models.loading import MarsModel, load
from marslm.models.tiny import build_tokenizer
from marslm.train.config import TuneConfig
from marslm.train.run import train


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    build_network(request.param, dtype=torch.float32).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def adapter_for(base: Path, mode: str, folder: Path) -> Path:
    model = load(str(base))
    chat = (Message("user", "Say it."), Message("assistant", "several tokens at once"))
    examples = [encode_dialogue(model.tokenizer, Dialogue(chat, "made:1"))] * 2
    settings = {"steps": 2, "batch_size": 2, "rank": 4, "learning_rate": 0.05}
    train(model, examples, TuneConfig.for_mode(mode, **settings), folder)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def lora(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter_for(base, "lora", tmp_path_factory.mktemp("lora"))


def logits_of(network: torch.nn.Module, mask: int) -> Tensor:
    ids = [*build_tokenizer().encode("What is said?"), mask, mask, mask]
    with torch.no_grad():
        logits: Tensor = network(input_ids=torch.tensor([ids])).logits
    return logits


def test_the_round_trip_is_equal(base: Path, lora: Path, tmp_path: Path) -> None:
    merged: MarsModel = load(str(base), adapter=lora)
    export_merged(str(base), tmp_path / "out", adapter=lora)
    again = load(str(tmp_path / "out"))
    mask = merged.mask_token_id
    assert torch.equal(logits_of(again.network, mask), logits_of(merged.network, mask))
    assert again.adapter is None
    assert again.record is not None
    assert again.record.mode == "full"
    assert again.record.block_size == merged.record.block_size  # type: ignore[union-attr]


def test_plain_transformers_loads_it_as_its_own_architecture(
    base: Path, lora: Path, tmp_path: Path
) -> None:
    mask = export_merged(str(base), tmp_path / "out", adapter=lora).mask_token_id
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    before = json.loads((base / "config.json").read_text())
    assert type(network).__name__ == before["architectures"][0]
    assert network.config.mask_token_id == network.config.pard_token == mask
    assert network.generation_config.suppress_tokens == [mask]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.encode("What is said?") == build_tokenizer().encode("What is said?")
    written = network.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False)
    assert mask not in written[0].tolist()


def test_weights_are_stored_as_asked(base: Path, lora: Path, tmp_path: Path) -> None:
    export_merged(str(base), tmp_path / "out", adapter=lora, dtype=torch.bfloat16)
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert network.dtype == torch.bfloat16


def test_what_cannot_be_merged_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = adapter_for(base, "mask-only", tmp_path / "mask-only")
    with pytest.raises(InputError, match="mask-only adapter cannot be merged"):
        export_merged(str(base), tmp_path / "out", adapter=adapter)
    heads = adapter_for(base, "medusa", tmp_path / "medusa")
    with pytest.raises(InputError, match="Medusa heads cannot be merged"):
        export_merged(str(base), tmp_path / "out", adapter=heads)
    with pytest.raises(InputError, match="was not trained"):
        export_merged(str(base), tmp_path / "out")
    with pytest.raises(InputError, match="exists already"):
        export_merged(str(base), base)
    assert not (tmp_path / "out").exists()
