"""GGUF files: converted once into the cache, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from helpers import build_network
from marslm.errors import InputError
from marslm.models.loading import load

gguf = pytest.importorskip("gguf")

TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "<|end|>", "<|unused|>"]
NORMAL, CONTROL = 1, 3
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleave(weight: Tensor, heads: int) -> Tensor:
    """Order a query or key matrix as llama.cpp does: rotary pairs side by side."""
    halves = weight.view(heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def write_gguf(path: Path, network: PreTrainedModel) -> None:
    config = network.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("small")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([NORMAL] * 257 + [CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    writer.add_bos_token_id(257)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    state = network.state_dict()
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output.weight", state["lm_head.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for theirs, ours in NAMES.items():
            weight = state[f"model.layers.{layer}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                q = ours == "attn_q"
                heads = config.num_attention_heads if q else config.num_key_value_heads
                weight = interleave(weight, heads)
            writer.add_tensor(f"blk.{layer}.{ours}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def network() -> PreTrainedModel:
    """A network with as many rows as the file has tokens."""
    network = build_network("llama", dtype=torch.float32)
    network.resize_token_embeddings(len(TOKENS), mean_resizing=False)
    return network


@pytest.fixture(scope="module")
def source(network: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path, network)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MARSLM_CACHE", str(folder))
    return folder


def test_a_gguf_file_is_the_model_it_was_made_from(source: Path, network: PreTrainedModel) -> None:
    model = load(str(source))
    assert isinstance(model.network, LlamaForCausalLM)
    assert model.context_length == network.config.max_position_embeddings
    assert model.end_token_ids == {257}
    assert model.mask_token_id == TOKENS.index("<|unused|>")
    assert model.tokenizer.encode("cab") == [TOKENS.index("c"), TOKENS.index("ab")]
    ids = torch.tensor([model.tokenizer.encode("Some text to compare, abba.")])
    with torch.no_grad():
        expected = network(input_ids=ids).logits
        torch.testing.assert_close(model.network(input_ids=ids).logits, expected)


def test_it_is_converted_once(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(str(source))
    assert [path.name.startswith("small-") for path in cache.iterdir()] == [True]

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("marslm.models.gguf.convert_gguf", refuse)
    again = load(str(source))
    for name, weight in first.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], weight)


def test_a_changed_file_is_converted_anew(source: Path, cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(source.read_bytes())
    load(str(copy))
    os.utime(copy, (1, 1))
    load(str(copy))
    assert len(list(cache.iterdir())) == 2


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: int(share * len(content))]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"this is a text file, not a model\n" * 40,
        cut(0.001),
        cut(0.02),
        cut(0.5),
        cut(0.99),
        lambda content: content.replace(b"llama", b"other"),
    ],
    ids=["empty", "text", "cut in the head", "cut in the tokens", "half", "end cut", "unknown"],
)
def test_a_damaged_file_leaves_nothing_behind(
    source: Path, cache: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(damage(source.read_bytes()))
    with pytest.raises(InputError, match=r"broken\.gguf cannot be read as GGUF") as caught:
        load(str(broken))
    assert "\n" not in str(caught.value)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_conversion_that_is_interrupted_leaves_nothing_behind(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "transformers.PreTrainedTokenizerFast.save_pretrained", interrupt, raising=True
    )
    with pytest.raises(KeyboardInterrupt):
        load(str(source))
    assert list(cache.iterdir()) == []


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no GGUF file at .*nowhere\.gguf"):
        load(str(tmp_path / "nowhere.gguf"))
