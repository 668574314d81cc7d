"""`bench gpu` on a CPU: figures that follow from what was run, and checks that can fail."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest
import torch

from helpers import build_model
from marslm.bench import gpu, roofline
from marslm.bench.controlled import Coin
from marslm.bench.gpu import GpuBench, Sizes, check
from marslm.bench.limit import weight_bytes
from marslm.bench.random_model import random_model
from marslm.bench.roofline import Machine
from marslm.engine.memory import bytes_per_token
from marslm.report import Row
from marslm.runtime import graphs
from marslm.runtime.static import eager
from marslm.strategies.lossless import Lossless

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_SIZES", {"cpu": (1 << 12, 8)})


def run(sizes: Sizes, budget: float = 600) -> list[Row]:
    return list(GpuBench(CPU, sizes, budget=budget).run())


def test_the_shapes_are_qwens() -> None:
    """Parameters as its model cards count them; nothing is allocated on the meta device."""
    counts = {
        shape: sum(
            weight.numel()
            for weight in random_model(
                shape, torch.device("meta"), torch.bfloat16
            ).network.parameters()
        )
        for shape in ("0.5b", "7b")
    }
    assert counts == {"0.5b": 494_032_768, "7b": 7_615_616_512}


def test_a_random_model_is_the_same_every_time_and_leaves_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = (random_model("tiny", CPU, torch.bfloat16).network for _ in "ab")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {weight.dtype for weight in first.parameters()} == {torch.bfloat16}
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_roofline_is_the_longer_of_reading_and_multiplying() -> None:
    model = build_model("llama", dtype=torch.float32)
    weights = weight_bytes(model, "none")
    slow_memory = Machine(bytes_per_second=100.0, operations_per_second=1e12)
    cells = 50 * bytes_per_token(model)
    assert slow_memory.step_seconds(model, rows=8, cells=50) == (weights + cells) / 100
    slow_products = Machine(bytes_per_second=1e12, operations_per_second=10.0)
    assert slow_products.step_seconds(model, rows=8, cells=50) == 2 * 8 * weights / 4 / 10


@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_rows_follow_from_what_was_run(monkeypatch: pytest.MonkeyPatch, fixed_shapes: bool) -> None:
    if fixed_shapes:
        monkeypatch.setattr(graphs, "capture_for", lambda device: eager)
    rows = run(Sizes(["tiny"], [1, 3], acceptance=1.0, context=10, new_tokens=24))
    identical, agreement, *measured = rows
    assert identical["identical_to_ar"] == 1
    assert identical["tokens_per_step"] > 1.5
    assert 0.8 < agreement["agreement"] <= 1
    names = ["transformers", "ar", "mars", "lossless"]
    assert [(row["batch"], row["strategy"]) for row in measured] == [
        (batch, name) for batch in (1, 3) for name in names
    ]
    for row in measured:
        assert row["speed_over_ar"] == pytest.approx(
            row["tokens_per_second"]
            / next(
                other["tokens_per_second"]
                for other in measured
                if (other["batch"], other["strategy"]) == (row["batch"], "ar")
            )
        )
        assert row["graphs"] is (fixed_shapes and row["strategy"] != "transformers")
        assert row["fraction_of_roofline"] > 0
        # All candidates are kept: B = 4 tokens a step and request.
        if row["strategy"] == "mars":
            assert row["tokens_per_step"] == 4 * row["batch"]
            assert row["rows_per_step"] >= 4 * row["batch"]
        elif row["strategy"] != "lossless":
            assert row["tokens_per_step"] == row["rows_per_step"] == row["batch"]


def test_lossless_keeps_what_the_coin_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows that cost nothing it drafts all it may."""
    monkeypatch.setattr("marslm.runtime.costs.StepCosts.seconds", lambda self, rows, masks: 1.0)
    always, never = (
        run(Sizes(["tiny"], [2], acceptance=p, context=8, new_tokens=32))[2:] for p in (1.0, 0.0)
    )
    kept = {row["strategy"]: row["tokens_per_step"] for row in always}
    assert kept["lossless"] > 2 * 2
    assert {row["tokens_per_step"] for row in never} == {2}


def test_the_check_finds_a_strategy_that_keeps_wrong_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lossless, "kept_drafts", lambda self, drafts, choices: len(drafts))
    identical, _ = check("tiny", CPU)
    assert identical["identical_to_ar"] < 1


def test_what_there_is_no_time_for_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every look takes ten seconds."""
    now = itertools.count(0, 10)
    clock = SimpleNamespace(monotonic=lambda: next(now), perf_counter=time.perf_counter)
    monkeypatch.setattr(gpu, "time", clock)
    sizes = Sizes(["tiny", "tiny"], [1, 2], context=4, new_tokens=4)
    rows = run(sizes, budget=140)[2:]
    assert [row["batch"] for row in rows if row["skipped"]] == [2, 1, 2]
    assert {row["batch"] for row in rows if not row["skipped"]} == {1}


def test_a_coin_keeps_a_run_of_the_chance_it_was_given() -> None:
    coin = Coin(0.5)
    counts = [coin.kept(3) for _ in range(4000)]
    assert sum(counts) / len(counts) == pytest.approx(0.5 + 0.25 + 0.125, abs=0.05)
    assert {Coin(1).kept(3), Coin(0).kept(3)} == {3, 0}
