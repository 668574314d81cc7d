"""One OpenTelemetry span a generation, in the conventions for generative AI.

FastAPI records the HTTP request around it.
Knows nothing about where spans go: without the SDK (extra `otel`), nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry import trace

from marslm.serve.logs import request_id

_NAMES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "time_to_first_token": "gen_ai.server.time_to_first_token",
    "forwards": "marslm.forwards",
    "tokens_per_forward": "marslm.tokens_per_forward",
}


def record(tracer: trace.Tracer, model: str, facts: Mapping[str, object], seconds: float) -> None:
    """Record the span of a request that ends now and took `seconds`."""
    end = time.time_ns()
    span = tracer.start_span(f"generate {model}", start_time=end - int(seconds * 1e9))
    if span.is_recording():
        span.set_attribute("gen_ai.request.model", model)
        span.set_attribute("gen_ai.response.id", request_id.get() or "")
        for fact, name in _NAMES.items():
            value = facts[fact]
            if value is not None:
                span.set_attribute(name, value)  # type: ignore[arg-type]
    span.end(end)
