"""Under load: refused in time, freed at once, drained at the end, and none harms another."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from helpers import build_model, solo
from marslm.engine.async_engine import AsyncEngine
from marslm.engine.engine import Engine
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.serve.app import create_app
from marslm.serve.config import ServeConfig
from serve.conftest import NAME, Running, Serve, chat, events_of, wait_for

ENDLESS = {"max_tokens": 4000, "ignore_eos": True, "marslm": {"strategy": "ar"}}


def slow_down(server: Running, monkeypatch: pytest.MonkeyPatch, gate: threading.Semaphore) -> None:
    """Have the engine wait for a permit before each step."""
    step = server.engine.step_contained

    def gated() -> Any:
        gate.acquire()
        return step()

    monkeypatch.setattr(server.engine, "step_contained", gated)


def test_a_full_queue_says_when_to_come_back(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Semaphore(0)
    with serve(slots=1, max_waiting=2) as server, ThreadPoolExecutor() as pool:
        slow_down(server, monkeypatch, gate)
        answers = [
            pool.submit(server.post, "/v1/chat/completions", chat(max_tokens=2)) for _ in range(3)
        ]
        wait_for(lambda: server.service.engine.open_requests == 3)
        refused = server.post("/v1/chat/completions", chat())
        for _ in range(50):
            gate.release()
        assert [answer.result().status_code for answer in answers] == [200] * 3
        metrics = server.get("/metrics").text
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"
    assert 'marslm:http_responses_total{model_name="letters",status="429"} 1.0' in metrics


def test_more_answers_than_there_is_ever_room_for(serve: Serve) -> None:
    body = {"model": NAME, "prompt": ["ab", "cd"], "n": 2, "max_tokens": 1}
    with serve(slots=1, max_waiting=2) as server:
        refused = server.post("/v1/completions", body)
        assert server.post("/v1/completions", {**body, "prompt": "ab"}).status_code == 200
    assert refused.status_code == 400
    assert "room for 3: ask for fewer" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_within_a_step(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    gate = threading.Semaphore(0)
    with serve(slots=1) as server:
        slow_down(server, monkeypatch, gate)

        async def leave() -> None:
            async with httpx2.AsyncClient(base_url=server.url) as client:
                body = chat(stream=stream, **ENDLESS)
                task = asyncio.create_task(client.post("/v1/chat/completions", json=body))
                while server.engine.running == 0:
                    gate.release()
                    await asyncio.sleep(0.01)
                task.cancel()

        asyncio.run(leave())
        # The engine waits at the gate: the abort is asked for before the next step is allowed.
        wait_for(lambda: not server.service.engine._commands.empty() or not server.engine.running)
        for _ in range(3):
            gate.release()
        wait_for(lambda: server.engine.running == 0)
        for _ in range(100):
            gate.release()
        assert server.post("/v1/chat/completions", chat(max_tokens=3)).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long_ends(serve: Serve, stream: bool) -> None:
    with serve(timeout=0.02) as server:
        response = server.post("/v1/chat/completions", chat(n=4, stream=stream, **ENDLESS))
        server.wait_until_idle()
    error = (events_of(response)[-1] if stream else response.json())["error"]
    assert error["code"] == "timeout"
    assert "longer than 0.02 s" in error["message"]
    assert response.status_code == (200 if stream else 504)


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_in_one_request_leaves_the_others_alone(
    serve: Serve, fitted_model: MarsModel, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The faulty one fails while it commits a token; its neighbours share every forward."""
    with serve(slots=4) as server, ThreadPoolExecutor() as pool:
        from marslm.runtime.sequence import Sequence  # noqa: PLC0415

        commit = Sequence.commit

        def faulty(sequence: Sequence, tokens: list[int], *logprobs: Any) -> list[int]:
            if sequence.params.seed == 666 and len(sequence.runs) == 2:
                raise ArithmeticError("a fault")
            return commit(sequence, tokens, *logprobs)

        monkeypatch.setattr(Sequence, "commit", faulty)
        good = [pool.submit(server.post, "/v1/chat/completions", chat()) for _ in range(3)]
        bad = server.post("/v1/chat/completions", chat(seed=666, stream=stream))
        texts = {each.result().json()["choices"][0]["message"]["content"] for each in good}
        server.wait_until_idle()
        alone = server.post("/v1/chat/completions", chat()).json()["choices"][0]["message"]
    error = (events_of(bad)[-1] if stream else bad.json())["error"]
    assert error["type"] == "server_error"
    assert "a fault" not in error["message"]
    assert texts == {alone["content"]}


def test_a_body_may_be_so_large_and_no_larger(serve: Serve) -> None:
    small = json.dumps(chat()).encode()
    with serve(max_body=len(small)) as server, server.http as http:
        headers = {"content-type": "application/json"}
        assert http.post("/v1/chat/completions", content=small, headers=headers).is_success

        def in_pieces() -> Any:
            yield small
            yield b" "

        for large in (small + b" ", in_pieces()):
            response = http.post("/v1/chat/completions", content=large, headers=headers)
            assert response.status_code == 413
            assert "larger than" in response.json()["error"]["message"]


def test_the_key_guards_v1_alone(serve: Serve) -> None:
    with serve(api_key="sésame") as server, server.http as http:
        for key in ("", "Bearer", "Bearer sesame", "sésame", "Bearer sésame "):
            headers = {"authorization": key.encode()}
            if key == "Bearer sésame ":
                continue  # clients strip the blank
            response = http.get("/v1/models", headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        allowed = http.get("/v1/models", headers={"authorization": "Bearer sésame".encode()})
        assert allowed.status_code == 200
        for path in ("/health", "/ready", "/metrics", "/"):
            assert http.get(path).status_code == 200


def test_the_key_is_wanted_below_a_mount_too() -> None:
    """Ray's route prefixes and other applications put a prefix before /v1."""
    small = build_model("llama", hidden_size=16, layers=1, context=64)
    engine = AsyncEngine(Engine(small, slots=1, pack=False))
    parent = FastAPI()
    parent.mount("/llm", create_app(engine, ServeConfig(NAME, api_key="sesame")))
    client = TestClient(parent)
    assert client.get("/llm/health").status_code == 200
    assert client.get("/llm/v1/models").status_code == 401
    known = {"authorization": "Bearer sesame"}
    assert client.get("/llm/v1/models", headers=known).status_code == 200
    engine.close()


def test_cors_is_off_unless_asked_for(serve: Serve) -> None:
    origin = {"origin": "http://elsewhere.example"}
    with serve() as server:
        assert "access-control-allow-origin" not in server.get("/health", headers=origin).headers
    with serve(cors_origins=("http://elsewhere.example",)) as server:
        allowed = server.get("/health", headers=origin).headers["access-control-allow-origin"]
        assert allowed == "http://elsewhere.example"


def test_ids_logs_metrics_and_spans_of_a_request(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415
        InMemorySpanExporter,
    )

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    caplog.set_level("INFO", "marslm")
    with serve(traces=provider) as server, server.http as http:
        response = http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "abc-1"})
        assert response.headers["x-request-id"] == "abc-1"
        unfit = http.get("/health", headers={"x-request-id": "a b\tc"})
        assert len(unfit.headers["x-request-id"]) == 32
        usage = response.json()["usage"]
        metrics = dict(
            line.rsplit(" ", 1)
            for line in http.get("/metrics").text.splitlines()
            if not line.startswith("#")
        )
    label = '{model_name="letters"}'
    assert float(metrics[f"marslm:generation_tokens_total{label}"]) == usage["completion_tokens"]
    assert float(metrics[f"marslm:prompt_tokens_total{label}"]) == usage["prompt_tokens"]
    assert float(metrics[f"marslm:forwards_total{label}"]) == usage["forwards"]
    assert float(metrics[f"marslm:num_requests_running{label}"]) == 0
    assert float(metrics[f"marslm:num_slots{label}"]) == 4
    assert float(metrics[f"marslm:time_to_first_token_seconds_count{label}"]) == 1
    positions = [
        float(value) for key, value in metrics.items() if "accepted_tokens_per_pos_total" in key
    ]
    assert positions[0] == usage["forwards"]
    assert sum(positions) == usage["completion_tokens"]
    record = next(record for record in caplog.records if record.message == "answered")
    assert record.forwards == usage["forwards"]  # type: ignore[attr-defined]
    span = next(span for span in exporter.get_finished_spans() if span.name == "generate letters")
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert span.attributes["gen_ai.response.id"] == "abc-1"


def test_a_fault_that_nobody_expected_is_counted_and_has_an_id(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def faulty(messages: Any) -> list[int]:
        raise ArithmeticError("a fault")

    with serve() as server, server.http as http:
        monkeypatch.setattr(server.service.encoder, "chat", faulty)
        response = http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "abc-2"})
        metrics = http.get("/metrics").text
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "abc-2"
    assert response.json()["error"]["type"] == "server_error"
    assert "a fault" not in response.text
    assert 'marslm:http_responses_total{model_name="letters",status="500"} 1.0' in metrics
    assert any(r.exc_info for r in caplog.records if r.message == "request failed")


def stop_in_the_middle(drain: int, **request: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Run the command itself and stop it during a stream; return the stream's rest and the log."""
    command = [sys.executable, "-c", "from marslm.cli.app import main; main()", "serve"]
    command += ["--model", "tiny", "--port", "0", "--drain", str(drain)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        body = chat(model="tiny", stream=True, **request)
        with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line.removeprefix("data: ") for line in lines if line]
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health")
        assert process.wait(60) == 0
        assert process.stderr is not None
        logs = [json.loads(line) for line in process.stderr if line.startswith("{")]
    assert rest.pop() == "[DONE]"
    return rest, logs


def test_a_stopped_server_finishes_its_answers() -> None:
    rest, logs = stop_in_the_middle(200, max_tokens=100, ignore_eos=True)
    assert json.loads(rest[-1])["choices"][0]["finish_reason"] == "length"
    answered = next(entry for entry in logs if entry["message"] == "answered")
    assert answered["completion_tokens"] == 100


def test_what_a_drain_cuts_off_is_told_so() -> None:
    rest, _ = stop_in_the_middle(0, **ENDLESS)
    assert json.loads(rest[-1])["error"]["code"] == "shutting_down"


def test_many_at_once_each_get_their_own(server: Running, fitted_model: MarsModel) -> None:
    """More than there are slots, all different, streamed and not."""
    texts = ["abcdefghijkl"[i : i + 4] for i in range(8)]

    def ask(text: str) -> str:
        body = chat(messages=[{"role": "user", "content": text}], max_tokens=30)
        return server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]

    from marslm.data.dialogues import Message  # noqa: PLC0415
    from marslm.engine.api import encode  # noqa: PLC0415

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, texts))
    params = SamplingParams(max_new_tokens=30)
    for text, answer in zip(texts, found, strict=True):
        assert (
            answer == solo(fitted_model, encode(fitted_model, [Message("user", text)]), params).text
        )
