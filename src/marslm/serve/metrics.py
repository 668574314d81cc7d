"""Prometheus metrics, named as vLLM names its own so that dashboards carry over.

Knows nothing about routes; `Answers` reports here what it sees.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marslm.engine.async_engine import AsyncEngine
from marslm.runtime.sequence import Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)

MOST_POSITIONS = 16
"""Accepted positions counted one by one; a longer run counts in the last."""


class CountResponses:
    """Counts the statuses of all responses."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an app."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responded(message["status"])
            await send(message)

        await self._app(scope, receive, send_counted)


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        """Define the metrics; gauges read the engine when they are asked."""
        self._registry = CollectorRegistry()
        self._model = model_name
        knob = engine.engine.speed
        self._gauge("num_requests_running", "Requests in a slot", lambda: engine.engine.running)
        self._gauge(
            "num_requests_waiting",
            "Requests without a slot",
            lambda: max(0, engine.open_requests - engine.engine.running),
        )
        self._gauge("num_slots", "Slots there are", lambda: engine.engine.slots)
        self._gauge("tau", "Acceptance threshold of the speed knob now", lambda: knob.tau)
        self._gauge("block", "Largest B of the speed knob now", lambda: engine.engine.largest_block)
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "To the first run", _FIRST
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Time since the run before, per token of a run", _TOKEN
        )
        self.queue = self._histogram("request_queue_time_seconds", "Until the first step", _FIRST)
        self.whole = self._histogram("e2e_request_latency_seconds", "Whole request", _WHOLE)
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens")
        self.generation_tokens = self._counter("generation_tokens", "Tokens written")
        self.forwards = self._counter("forwards", "Forwards that brought a request tokens")
        self._by_position = self._counter(
            "accepted_tokens_per_pos", "Forwards that brought at least so many tokens", "position"
        )
        self._finished = self._counter("request_success", "Answers", "finished_reason")
        self._responses = self._counter("http_responses", "Responses", "status")
        self._moves = self._counter("speed_moves", "Changes of the knob", "cause")

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self._registry)

    def piece(self, tokens: int, gap: float | None) -> None:
        """Count one run; `gap`: seconds since the run before it, None for an answer's first."""
        self.generation_tokens.inc(tokens)
        self.forwards.inc()
        for position in range(1, min(tokens, MOST_POSITIONS) + 1):
            self._by_position.labels(self._model, str(position)).inc()
        if gap is not None:
            for _ in range(tokens):
                self.inter_token.observe(gap / tokens)

    def finished(self, sequence: Sequence, queued: float | None) -> None:
        """Count one ended answer; `queued`: seconds it waited, None if it never began."""
        reason = sequence.transcript.finish_reason or "abort"
        self._finished.labels(self._model, reason).inc()
        if queued is not None:
            self.queue.observe(queued)

    def responded(self, status: int) -> None:
        """Count a response."""
        self._responses.labels(self._model, str(status)).inc()

    def moved(self, cause: str) -> None:
        """Count a change of the knob, by `policy` or by `request`."""
        self._moves.labels(self._model, cause).inc()

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"marslm:{name}", text, ["model_name"], registry=self._registry)
        gauge.labels(self._model).set_function(read)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"marslm:{name}", text, ["model_name"], registry=self._registry, buckets=buckets
        ).labels(self._model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(f"marslm:{name}", text, ["model_name", *labels], registry=self._registry)
        return counter if labels else counter.labels(self._model)
