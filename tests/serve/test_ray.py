"""Two replicas under Ray Serve: both answer, and both hear the knob."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from serve.conftest import chat, wait_for

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
pytest.importorskip("ray")

SOURCES = str(Path(__file__).parents[2] / "src")


def tiny_engine() -> Any:
    """Each replica calls this once."""
    from marslm.engine.async_engine import AsyncEngine  # noqa: PLC0415
    from marslm.engine.engine import Engine  # noqa: PLC0415
    from marslm.models.loading import load  # noqa: PLC0415

    return AsyncEngine(Engine(load("tiny"), slots=2, max_length=256))


@pytest.fixture
def url() -> Iterator[str]:
    import sys  # noqa: PLC0415

    import ray  # noqa: PLC0415
    import ray.cloudpickle  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415

    from marslm.serve.config import ServeConfig  # noqa: PLC0415
    from marslm.serve.ray_app import application  # noqa: PLC0415

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    variables = {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": variables})
    serve.start(http_options={"host": "127.0.0.1", "port": 8765})
    settings = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}}
    serve.run(application(tiny_engine, ServeConfig(model_name="tiny"), **settings))
    (deployment,) = serve.status().applications["default"].deployments.values()
    assert deployment.replica_states == {"RUNNING": 2}
    yield "http://127.0.0.1:8765"
    serve.shutdown()
    ray.shutdown()


def test_the_knob_reaches_both_replicas(url: str) -> None:
    body = chat(model="tiny", max_tokens=4)
    with httpx2.Client(base_url=url, timeout=120) as client:
        answers = [client.post("/v1/chat/completions", json=body).json() for _ in range(6)]
        assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
        assert client.put("/v1/speed", json={"strategy": "mars", "tau": 0.25}).status_code == 200

        def heard() -> bool:
            return all(client.get("/v1/speed").json()["tau"] == 0.25 for _ in range(16))

        wait_for(heard, 30)
        events = client.post("/v1/chat/completions", json={**body, "stream": True}).text
        assert events.endswith("data: [DONE]\n\n")
