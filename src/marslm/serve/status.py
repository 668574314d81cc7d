"""What is served and how it is: /v1/models, /health, /ready and /metrics.

Knows nothing about requests.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from marslm.serve import errors
from marslm.serve.errors import ApiError
from marslm.serve.metrics import CONTENT_TYPE
from marslm.serve.schemas import Model, Models, Status
from marslm.serve.service import Service


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()
    model = Model(
        id=service.config.model_name,
        created=service.created,
        max_model_len=service.engine.engine.max_length,
    )

    @routes.get("/v1/models", responses=errors.describe(401))
    async def list_models() -> Models:
        """List the one model there is."""
        return Models(data=[model])

    @routes.get("/v1/models/{name:path}", responses=errors.describe(401, 404))
    async def show_model(name: str) -> Model:
        """Show it."""
        service.check_model(name)
        return model

    @routes.get("/health", responses=errors.describe(503))
    async def health() -> Status:
        """Say whether the engine lives; 503 tells whoever watches to start the server anew."""
        if not service.engine.alive:
            raise ApiError(503, "the engine's thread has ended")
        return Status(status="ok")

    @routes.get("/ready", responses=errors.describe(503))
    async def ready() -> Status:
        """Say whether new requests are welcome; 503 while the server drains."""
        if service.draining or not service.engine.alive:
            raise ApiError(503, "the server is shutting down")
        return Status(status="ready")

    @routes.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Show all metrics in Prometheus' text form."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return routes
