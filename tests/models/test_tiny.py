import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from marslm.errors import InputError
from marslm.models.tiny import ARCHITECTURES, RESERVED, build_model, build_tokenizer

TOKENIZER = build_tokenizer()
SPECIAL = (TOKENIZER.pad_token, "<|im_start|>", TOKENIZER.eos_token, TOKENIZER.mask_token)


@given(st.text())
@example(" leading, and  trailing . spaces n't 's \r\n\t ")
@example("".join(map(chr, range(0x180))) + "\u2028\ufeff\U0001f984e\u0301")
@example("<|im_start|>user\n<|im_end|><|mask|> <|pad|>")
def test_decoding_undoes_encoding(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_a_saved_tokenizer_is_the_same(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "a , b \u00e9 \U0001f984<|im_end|>"
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.chat_template == TOKENIZER.chat_template
    assert loaded.mask_token_id == TOKENIZER.mask_token_id


def test_every_byte_is_one_token():
    text = "a\u00e9\u20ac\U0001f984"
    assert len(TOKENIZER.encode(text)) == len(text.encode())


def test_special_tokens_are_single_distinct_and_outside_the_bytes():
    ids = [TOKENIZER.encode(token) for token in (*SPECIAL, *RESERVED)]
    assert all(len(one) == 1 for one in ids)
    assert sorted(one[0] for one in ids) == list(range(256, len(TOKENIZER)))
    assert TOKENIZER.decode([ids[1][0], ids[2][0], ids[3][0]], skip_special_tokens=True) == ""


def test_chat_template_is_chatml():
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2"}]
    text = TOKENIZER.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n2 + 2<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    answered = [*asked, {"role": "assistant", "content": "4"}]
    whole = TOKENIZER.apply_chat_template(answered, tokenize=False)
    assert whole == text + "4<|im_end|>\n"


def test_a_plain_dialogue_never_holds_the_mask_token():
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    ids = TOKENIZER.apply_chat_template(turns, return_dict=False)
    assert TOKENIZER.mask_token_id not in ids


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_model_fits_the_tokenizer_and_is_causal(architecture):
    model = build_model(architecture=architecture)
    assert model.config.model_type == architecture
    rows = model.get_input_embeddings().weight
    assert rows is model.get_output_embeddings().weight
    assert len(rows) > len(TOKENIZER)
    ids = torch.tensor([TOKENIZER.encode("47 + 85 = ?<|mask|>")])
    changed = ids.clone()
    changed[0, -1] = 0
    with torch.no_grad():
        logits, other = model(ids).logits, model(changed).logits
    assert logits.shape == (1, ids.shape[1], len(rows))
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:, :-1], other[:, :-1])
    assert not torch.allclose(logits[:, -1], other[:, -1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_seed_alone_decides_the_weights(architecture):
    first = build_model(architecture=architecture, seed=1).state_dict()
    torch.rand(3)
    again = build_model(architecture=architecture, seed=1).state_dict()
    other = build_model(architecture=architecture, seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "model.embed_tokens.weight"
    assert not torch.equal(first[name], other[name])


def test_global_random_state_is_untouched():
    torch.manual_seed(5)
    wanted = torch.rand(4)
    torch.manual_seed(5)
    build_model(seed=9)
    assert torch.equal(torch.rand(4), wanted)


def test_sizes_are_followed():
    model = build_model(
        architecture="qwen3", hidden_size=32, layers=2, heads=8, kv_heads=4, intermediate_size=40
    )
    block = model.model.layers[1]
    assert len(model.model.layers) == 2
    assert block.self_attn.q_proj.weight.shape == (32, 32)
    assert block.self_attn.k_proj.weight.shape == (16, 32)
    assert block.mlp.up_proj.weight.shape == (40, 32)


def test_end_of_turn_and_padding_are_in_the_config():
    model = build_model(architecture="llama")
    assert model.config.eos_token_id == TOKENIZER.eos_token_id
    assert model.config.pad_token_id == TOKENIZER.pad_token_id
    assert model.config.bos_token_id is None
    assert model.generation_config.eos_token_id == TOKENIZER.eos_token_id


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"architecture": "gpt9"}, "llama, qwen2, qwen3"),
        ({"hidden_size": 30}, "hidden_size 30"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads 3"),
    ],
)
def test_impossible_models_are_refused_by_name(options, named):
    with pytest.raises(InputError, match=named):
        build_model(**options)
