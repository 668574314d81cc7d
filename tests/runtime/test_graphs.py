"""Recorded forwards are used where they agree with launched ones, and only there.

There is no GPU here: other captures stand in for CUDA graphs, and a record of calls for CUDA.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import build_model, build_runner, with_random_adapter
from marslm.runtime import graphs
from marslm.runtime.graphs import CudaGraphs
from marslm.runtime.static import Capture, Compute, eager

MODEL = with_random_adapter(build_model("qwen2", seed=4), seed=5)


def stale(compute: Compute) -> Compute:
    """A capture with the fault to be feared: it repeats the first step it saw."""
    result = compute()
    return lambda: result


def failing(compute: Compute) -> Compute:
    raise RuntimeError("operation not permitted\nwhen stream is capturing")


def not_quite(compute: Compute) -> Compute:
    return lambda: compute() * 1.001


@pytest.mark.parametrize(
    ("capture", "said"),
    [
        (eager, None),
        (stale, "they differ from launched operations by"),
        (not_quite, "they differ from launched operations by 0.001"),
        (failing, r"they fail \(operation not permitted\)"),
    ],
)
def test_graphs_are_used_if_they_agree(
    monkeypatch: pytest.MonkeyPatch, capture: Capture, said: str | None
) -> None:
    monkeypatch.setattr(graphs, "capture_for", lambda device: capture)
    if said is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runner, _ = build_runner(MODEL, slots=2)
        assert runner.static is not None
        # Each bucket of the check was also replayed for another step.
        assert {bucket.masks for bucket in runner.static.buckets} == {False, True}
        return
    with pytest.warns(UserWarning, match=said):
        runner, _ = build_runner(MODEL, slots=2)
    assert runner.static is None


def test_the_check_stays_within_a_short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index out of range would end a GPU's process."""
    monkeypatch.setattr(graphs, "capture_for", lambda device: eager)
    for length, buckets in {1: 0, 4: 2, 9: 3}.items():
        runner, _ = build_runner(MODEL, max_length=length)
        assert runner.static is not None
        assert len(runner.static.buckets) == buckets


def test_a_cpu_lays_rows_out_as_they_come() -> None:
    assert graphs.capture_for(torch.device("cpu")) is None
    assert build_runner(MODEL)[0].static is None


def test_a_forward_is_warmed_up_recorded_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    recording = SimpleNamespace(on=False)

    class Graph:
        def replay(self) -> None:
            said.append("replay")

    class Recorded:
        def __init__(self, graph: Graph, **options: Any) -> None:
            # The names that CUDA's own takes.
            inspect.signature(real.__init__).bind(self, graph, **options)
            assert options["pool"] == "pool"

        def __enter__(self) -> None:
            recording.on = True

        def __exit__(self, *_: object) -> None:
            recording.on = False

    real = torch.cuda.graph
    stream = SimpleNamespace(wait_stream=lambda other: said.append("wait"))
    for name, stand_in in {
        "graph_pool_handle": lambda: "pool",
        "device": lambda device: nullcontext(),
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": Graph,
        "graph": Recorded,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)

    result = torch.ones(1)

    def compute() -> Tensor:
        said.append("record" if recording.on else "run")
        return result

    replay = CudaGraphs(torch.device("cuda"))(compute)
    assert said == ["wait", "run", "run", "wait", "record"]
    assert replay() is result
    assert said[5:] == ["replay"]
