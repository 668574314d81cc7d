"""Where spans go: an OTLP endpoint. The extra `otel` brings what is imported here.

Knows nothing about what is traced.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def provider_to(endpoint: str) -> TracerProvider:
    """Return a tracer provider that exports to `endpoint`, such as http://localhost:4318/v1/traces."""
    provider = TracerProvider(resource=Resource.create({"service.name": "marslm"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider
