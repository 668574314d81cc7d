"""The mask-only adapter in vLLM's fused and split layers, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from marslm.backends.vllm.gated import GatedMethod, exclude_mask, gated, install, stacked
from marslm.errors import InputError
from marslm.models.adapter import Adapter, LowRank
from marslm.models.record import BaseMarks, MarsRecord

HIDDEN, HEAD, HEADS, KV_HEADS = 8, 4, 4, 2


def update(outputs: int, inputs: int = HIDDEN, rank: int = 2) -> LowRank:
    return LowRank(torch.randn(rank, inputs), torch.randn(outputs, rank))


def layer(ranks: int, rank: int, **fields: Any) -> Any:
    base = {"tp_size": ranks, "tp_rank": rank, "params_dtype": torch.float32}
    return SimpleNamespace(**base, **fields)


def qkv(ranks: int, rank: int) -> Any:
    kv = max(1, KV_HEADS // ranks)
    sizes = [HEADS * HEAD, kv * HEAD * ranks, kv * HEAD * ranks]
    return layer(
        ranks,
        rank,
        input_size=HIDDEN,
        input_size_per_partition=HIDDEN,
        output_sizes=sizes,
        num_kv_head_replicas=max(1, ranks // KV_HEADS),
    )


def apply(x: Tensor, each: LowRank) -> Tensor:
    return x @ each.down.T @ each.up.T


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_query_key_value_over_ranks(ranks: int) -> None:
    x = torch.randn(3, HIDDEN)
    parts = [update(HEADS * HEAD), update(KV_HEADS * HEAD), update(KV_HEADS * HEAD)]
    whole = [apply(x, part) for part in parts]
    for rank in range(ranks):
        got = apply(x, stacked(list(parts), qkv(ranks, rank)))
        kv_rank = rank * KV_HEADS // ranks if ranks > KV_HEADS else rank
        kv_ranks = min(ranks, KV_HEADS)
        wanted = [
            whole[0].chunk(ranks, -1)[rank],
            whole[1].chunk(kv_ranks, -1)[kv_rank],
            whole[2].chunk(kv_ranks, -1)[kv_rank],
        ]
        torch.testing.assert_close(got, torch.cat(wanted, -1))


def test_a_part_without_an_update_stays() -> None:
    x = torch.randn(3, HIDDEN)
    parts = [update(HEADS * HEAD), None, update(KV_HEADS * HEAD)]
    got = apply(x, stacked(list(parts), qkv(1, 0)))
    assert not got[:, HEADS * HEAD : HEADS * HEAD + KV_HEADS * HEAD].any()
    assert got[:, : HEADS * HEAD].any()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_layer_that_splits_its_input_sums_over_ranks(ranks: int) -> None:
    x, one = torch.randn(3, 12), update(HIDDEN, inputs=12)
    total = torch.zeros(3, HIDDEN)
    for rank in range(ranks):
        share = layer(
            ranks,
            rank,
            input_size=12,
            input_size_per_partition=12 // ranks,
            output_size=HIDDEN,
            output_size_per_partition=HIDDEN,
        )
        total += apply(x.chunk(ranks, -1)[rank], stacked([one], share))
    torch.testing.assert_close(total, apply(x, one))


def test_other_rows_keep_every_bit_even_beside_infinities() -> None:
    y, x = torch.randn(4, 5), torch.randn(4, HIDDEN)
    x[0] = torch.inf
    gate = torch.tensor([False, True, False, True])[:, None]
    got = gated(y, x, gate, torch.randn(HIDDEN, 2), torch.randn(2, 5))
    assert torch.equal(got[~gate[:, 0]], y[~gate[:, 0]])
    assert not torch.equal(got[gate[:, 0]], y[gate[:, 0]])


def test_a_wrapped_method_is_still_what_it_was() -> None:
    inner = SimpleNamespace(apply=lambda layer, x, bias: x + bias, kind="fp8")
    method = GatedMethod(inner)
    assert method.kind == "fp8"
    closed = SimpleNamespace(
        mars_gate=torch.zeros(4, 1, dtype=torch.bool),
        mars_down=torch.randn(5, 2),
        mars_up=torch.randn(2, 5),
    )
    x = torch.randn(3, 5)
    assert torch.equal(method.apply(closed, x, torch.ones(5)), x + 1)


def test_mask_is_impossible_in_every_row() -> None:
    model = SimpleNamespace(compute_logits=lambda hidden: hidden.clone())
    exclude_mask(model, 2)
    logits = model.compute_logits(torch.zeros(3, 4))
    assert logits[:, 2].isneginf().all()
    assert torch.isfinite(logits[:, [0, 1, 3]]).all()
    model = SimpleNamespace(compute_logits=lambda hidden: None)
    exclude_mask(model, 2)
    assert model.compute_logits(torch.zeros(3, 4)) is None


class UnquantizedLinearMethod:
    """Named as vLLM's."""

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        return x @ layer.weight.T


class UntriedLinearMethod(UnquantizedLinearMethod):
    """Another."""


class CompressedTensorsLinearMethod(UnquantizedLinearMethod):
    """Named as vLLM's, which asks the layer's scheme."""


class CompressedTensorsW8A8Fp8:
    """Named as vLLM's scheme."""


class Layer(nn.Module):
    """One of vLLM's linear layers, by the attributes that are read."""

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN, HIDDEN))
        self.quant_method = method
        self.tp_size, self.tp_rank, self.params_dtype = 1, 0, torch.float32
        self.input_size = self.input_size_per_partition = HIDDEN
        self.output_size = self.output_size_per_partition = HIDDEN

    def forward(self, x: Tensor) -> Tensor:
        return self.quant_method.apply(self, x, None)


class Model(nn.Module):
    """A model of one layer behind an embedding, padded as vLLM pads it."""

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(16, HIDDEN)
        self.model.embed_tokens.shard_indices = SimpleNamespace(
            org_vocab_start_index=0, org_vocab_end_index=10
        )
        self.model.o_proj = Layer(method)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model.o_proj(self.model.embed_tokens(input_ids))


def adapter_of(*names: str) -> Adapter:
    record = MarsRecord("mask-only", 9, block_size=4, base=BaseMarks("", "", ()))
    return Adapter(record, {name: update(HIDDEN) for name in names}, torch.randn(HIDDEN))


def test_installed_in_a_model() -> None:
    """Rows of masks are the merged model's with [MASK]'s own embedding, others stay bit for bit."""
    model, adapter = Model(UnquantizedLinearMethod()), adapter_of("model.o_proj")
    ids = torch.tensor([3, 9, 4, 9])
    with torch.no_grad():
        before = model(input_ids=ids)
        install(model, adapter, rows=8)
        after = model(input_ids=ids)
        x, own = adapter.mask_embedding, adapter.updates["model.o_proj"]
        wanted = x @ model.model.o_proj.weight.T + apply(x[None], own)[0]
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    torch.testing.assert_close(after[[1, 3]], wanted.expand(2, -1))


def test_a_layer_of_a_tried_scheme_is_handed_plain_inputs() -> None:
    model = Model(CompressedTensorsLinearMethod())
    model.model.o_proj.scheme = CompressedTensorsW8A8Fp8()
    install(model, adapter_of("model.o_proj"), rows=8)
    assert model.model.o_proj.requires_unquantized_input


@pytest.mark.parametrize("method", [UntriedLinearMethod, CompressedTensorsLinearMethod])
def test_what_cannot_take_an_adapter(method: type[Any]) -> None:
    model = Model(method())
    if method is CompressedTensorsLinearMethod:
        model.model.o_proj.scheme = UntriedLinearMethod()
    with pytest.raises(InputError, match=r"quantised like this model's \(UntriedLinearMethod\)"):
        install(model, adapter_of("model.o_proj"), rows=8)


def test_what_the_adapter_lacks() -> None:
    with pytest.raises(InputError, match=r"no layer for the adapter's model\.q_proj"):
        install(Model(UnquantizedLinearMethod()), adapter_of("model.q_proj"), rows=8)
