"""The attention that training runs: FlexAttention where it agrees with SDPA, and only there.

There is no GPU here: FlexAttention's forward runs uncompiled on the CPU, and the choice is tested
with networks that say they are elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from helpers import build_network
from marslm.core.masks import dense_mask
from marslm.core.streams import Rows
from marslm.data.encode import Example
from marslm.train import attention as attention_module
from marslm.train.attention import FLEX, SDPA, Attention, disagreement, pick_attention
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import TuneConfig


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield


@dataclass(frozen=True)
class SeesTooMuch(Attention):
    """A kernel with a fault: the first clean row sees the second."""

    def mask(self, rows: Rows, *, bidirectional: bool = False) -> torch.Tensor:
        mask = dense_mask(rows, rows, bidirectional=bidirectional)
        mask[..., 0, 1] = True
        return mask


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_flex_attention_computes_what_sdpa_does(architecture: str) -> None:
    network = build_network(architecture, seed=1, dtype=torch.float32)
    with torch.no_grad():
        assert disagreement(network, FLEX) is None
    assert network.config._attn_implementation == "flex_attention"


def test_a_kernel_with_a_fault_is_found_out() -> None:
    network = build_network("llama", seed=1, dtype=torch.float32)
    assert disagreement(network, SDPA) is None
    found = disagreement(network, SeesTooMuch())
    assert found is not None
    assert "its forward pass differs" in found


@pytest.mark.parametrize("bidirectional", [False, True])
def test_both_masks_say_the_same_of_a_padded_batch(
    examples: list[Example], bidirectional: bool
) -> None:
    config = TuneConfig(mode="full", block_size=3, steps=1)
    data = TwoStreamData(examples, config)
    batch = collate([data[0, i, 0] for i in range(len(data))], multiple=16)
    rows = Rows(**batch["noisy"])
    dense = SDPA.mask(rows, bidirectional=bidirectional)
    flex = FLEX.mask(rows, bidirectional=bidirectional)
    places = torch.arange(len(rows))
    for index in range(len(rows.position)):
        found = flex.mask_mod(torch.tensor(index), torch.tensor(0), places[:, None], places[None])
        assert torch.equal(found, dense[index, 0])


@pytest.mark.parametrize(
    ("outcome", "expected", "said"),
    [
        (None, FLEX, None),
        ("its forward pass differs from SDPA's by 0.3", SDPA, "differs from SDPA's by 0.3"),
        (RuntimeError("no kernel\nimage"), SDPA, r"it fails \(no kernel\)"),
    ],
)
def test_on_a_gpu_it_is_used_if_it_agrees(
    monkeypatch: pytest.MonkeyPatch,
    outcome: str | Exception | None,
    expected: Attention,
    said: str | None,
) -> None:
    network = build_network("llama", seed=1, dtype=torch.float32)
    monkeypatch.setattr(type(network), "device", torch.device("cuda"))

    def check(network: object, attention: Attention) -> str | None:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(attention_module, "disagreement", check)
    if said is None:
        picked = pick_attention(network)
    else:
        with pytest.warns(UserWarning, match=said):
            picked = pick_attention(network)
    assert picked == expected
    assert network.config._attn_implementation == expected.name


def test_on_a_cpu_training_keeps_sdpa() -> None:
    network = build_network("llama", seed=1, dtype=torch.float32)
    before = network.config._attn_implementation
    assert pick_attention(network) == SDPA
    assert network.config._attn_implementation == before


def test_streams_are_padded_to_whole_blocks(examples: list[Example]) -> None:
    data = TwoStreamData(examples, TuneConfig(mode="full", block_size=3, steps=1))
    items = [data[0, i, 0] for i in range(len(data))]
    exact, padded = collate(items), collate(items, multiple=128)
    for name in ("clean", "noisy"):
        rows = Rows(**padded[name])
        assert len(rows) % 128 == 0
        assert (rows.document[:, Rows(**exact[name]).position.shape[1] :] == -1).all()
    assert padded["ids"].shape == padded["clean_targets"].shape
    assert (padded["clean_targets"] != -100).sum() == (exact["clean_targets"] != -100).sum()
