"""Real servers over small models, on loopback, for real clients."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest

from marslm.engine.async_engine import AsyncEngine
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.serve.app import create_app
from marslm.serve.config import ServeConfig
from marslm.serve.server import make_server, open_socket
from marslm.serve.service import Service

NAME = "letters"


@dataclass(frozen=True)
class Running:
    """A server that runs. engine: its own, to look into."""

    url: str
    service: Service
    engine: Engine

    @property
    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60)

    def openai(self, **options: Any) -> openai.OpenAI:
        settings = {"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **settings)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        with self.http as client:
            return client.get(path, **options)

    def post(self, path: str, body: object) -> httpx2.Response:
        with self.http as client:
            return client.post(path, json=body)

    def wait_until_idle(self) -> None:
        wait_for(lambda: not (self.service.engine.open_requests or self.engine.running))


Serve = Callable[..., AbstractContextManager[Running]]


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@contextmanager
def run_server(
    model: MarsModel, *, slots: int = 4, max_waiting: int = 16, traces: Any = None, **config: Any
) -> Iterator[Running]:
    """Serve `model` from a thread of this process; config: fields of ServeConfig."""
    engine = Engine(model, slots=slots, pack=False)
    engine.speed.strategy = "lossless-chain"  # its runs are the same each time
    app = create_app(
        AsyncEngine(engine, max_waiting=max_waiting),
        ServeConfig(**{"model_name": NAME, **config}),
        traces,
    )
    socket = open_socket("127.0.0.1", 0)
    server = make_server(app, drain=20)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    wait_for(lambda: server.started)
    try:
        port = socket.getsockname()[1]
        yield Running(f"http://127.0.0.1:{port}", app.state.service, engine)
    finally:
        server.should_exit = True
        thread.join(60)
        socket.close()


@pytest.fixture
def serve(fitted_model: MarsModel) -> Serve:
    """Return a function that serves the fitted model with settings of its own."""
    return lambda **settings: run_server(fitted_model, **settings)


@pytest.fixture(scope="module")
def shared(fitted_model: MarsModel) -> Iterator[Running]:
    """One server for all tests of a file that leave it as it was."""
    with run_server(fitted_model) as running:
        yield running


@pytest.fixture
def server(shared: Running) -> Iterator[Running]:
    """The shared server, with the knob where it was."""
    strategy, tau = shared.engine.speed.strategy, shared.engine.speed.tau
    yield shared
    shared.engine.speed.strategy, shared.engine.speed.tau = strategy, tau
    shared.wait_until_idle()


def chat(**fields: Any) -> dict[str, Any]:
    """Return a chat request's body."""
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": "abcd"}],
        "temperature": 0,
        "max_tokens": 20,
        **fields,
    }


def events_of(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the JSON of a finished stream's events; the last one must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]
