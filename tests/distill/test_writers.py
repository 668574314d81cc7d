"""Our engine and an OpenAI-compatible server as writers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from helpers import build_model, solo
from marslm.data.dialogues import Message
from marslm.distill.writers import EndpointWriter, EngineWriter, Request, Sampling, prompt_ids
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

ASKED = [
    Request("a", (Message("user", "Hi"),), seed=1),
    Request("b", (Message("system", "Be brief."), Message("user", "Who?")), seed=2),
    Request("c", [5, 6, 7, 8], seed=3),
]


@pytest.fixture(scope="module")
def model() -> MarsModel:
    return build_model("llama", seed=1, end_token_ids=range(7, 288, 16))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_engine_writes_what_each_request_gives_alone(
    model: MarsModel, temperature: float
) -> None:
    heard: list[int] = []
    writer = EngineWriter(model, slots=2, max_length=120)
    sampling = Sampling(12, temperature)
    found = {r.key: w for r, w in writer.write(ASKED, sampling, heard.append)}
    for request in ASKED:
        params = SamplingParams(
            max_new_tokens=12, temperature=temperature, seed=request.seed, strategy="ar"
        )
        alone = solo(model, prompt_ids(model.tokenizer, request.prompt), params)
        written = found[request.key]
        assert (written.ids, written.text) == (tuple(alone.ids), alone.text)
        assert (written.tokens, written.cut) == (len(alone.ids), alone.finish_reason == "length")
    assert sum(heard) == sum(written.tokens for written in found.values())


def test_nothing_to_write(model: MarsModel) -> None:
    writer = EngineWriter(model, slots=2, max_length=60)
    assert list(writer.write([], Sampling(4), lambda tokens: None)) == []


class Server(BaseHTTPRequestHandler):
    """Answers with what it was sent; refuses messages that say so."""

    models = ("tiny",)
    busy = 0

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": name} for name in self.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" in body:
            said = body["messages"][-1]["content"]
            choice = {"message": {"content": f"{said} {body['seed']}"}, "finish_reason": "stop"}
        else:
            drawn = f"{body['temperature']} {body['top_p']}"
            choice = {"text": f"{body['prompt']} {drawn}", "finish_reason": "length"}
        if Server.busy:
            Server.busy -= 1
            self.reply(503, {"error": "busy"})
        elif body.get("messages", [{}])[-1].get("content") == "refuse":
            self.reply(400, {"error": "no\nthanks"})
        else:
            usage = {"completion_tokens": body["max_tokens"]}
            self.reply(200, {"choices": [choice], "usage": usage})

    def reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def endpoint(url: str) -> Iterator[EndpointWriter]:
    writer = EndpointWriter(url, "tiny", concurrency=2)
    yield writer
    writer.close()


def test_a_server_answers_messages_and_continues_ids(endpoint: EndpointWriter) -> None:
    heard: list[int] = []
    sampling = Sampling(9, temperature=0.5, top_p=0.9)
    found = {r.key: w for r, w in endpoint.write(ASKED, sampling, heard.append)}
    assert {key: (w.text, w.tokens, w.cut) for key, w in found.items()} == {
        "a": ("Hi 1", 9, False),
        "b": ("Who? 2", 9, False),
        "c": ("[5, 6, 7, 8] 0.5 0.9", 9, True),
    }
    assert heard == [9, 9, 9]


def test_a_refusal_is_one_line(endpoint: EndpointWriter) -> None:
    request = Request("x", (Message("user", "refuse"),))
    with pytest.raises(InputError, match=r"v1/chat/completions refuses with 400 .*no.*thanks") as e:
        list(endpoint.write([request], Sampling(9), lambda tokens: None))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("busy", "waits"), [(2, [1, 2]), (99, [1, 2, 4, 8, 16, 32])])
def test_a_busy_server_is_asked_again(
    endpoint: EndpointWriter, monkeypatch: pytest.MonkeyPatch, busy: int, waits: list[int]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("marslm.distill.writers.time.sleep", slept.append)
    monkeypatch.setattr(Server, "busy", busy)
    asked = endpoint.write(ASKED[:1], Sampling(9), lambda tokens: None)
    if busy == 2:
        assert [written.text for _, written in asked] == ["Hi 1"]
    else:
        with pytest.raises(InputError, match="refuses with 503"):
            list(asked)
    assert slept == waits


def test_a_server_with_one_model_may_call_it_otherwise(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    EndpointWriter(url, "owner/name", concurrency=1).close()
    monkeypatch.setattr(Server, "models", ("one", "two"))
    EndpointWriter(url, "two", concurrency=1).close()
    with pytest.raises(InputError, match="does not serve 'owner/name': name one of one, two"):
        EndpointWriter(url, "owner/name", concurrency=1)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(InputError, match="does not answer"):
        EndpointWriter("http://127.0.0.1:9/v1", "tiny", concurrency=1)
