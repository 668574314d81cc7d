"""The application: routes, middleware and the page, over one engine.

Knows nothing about sockets or processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from opentelemetry.trace import TracerProvider, get_tracer

from marslm._version import __version__
from marslm.engine.async_engine import AsyncEngine
from marslm.serve import chat, completions, errors, speed, status
from marslm.serve.config import ServeConfig
from marslm.serve.limits import ApiKey, BodyLimit
from marslm.serve.logs import RequestIds
from marslm.serve.metrics import CountResponses
from marslm.serve.service import KnobLink, Service

PAGE = Path(__file__).parent / "page"


def create_app(
    engine: AsyncEngine,
    config: ServeConfig,
    traces: TracerProvider | None = None,
    link: KnobLink | None = None,
) -> FastAPI:
    """Return the application; its `state.service` is what its routes share.

    The engine's thread ends with the application. traces: where spans go, by default wherever
    OpenTelemetry's global provider sends them. link: to other servers that share the knob.
    """
    service = Service(engine, config, get_tracer("marslm", tracer_provider=traces), link)
    app = FastAPI(
        title="marslm",
        version=__version__,
        lifespan=_lifespan,
        redoc_url=None,
        telemetry={"tracer_provider": traces, "operation_spans": False},
    )
    app.state.service = service
    errors.install(app)
    for part in (chat, completions, speed, status):
        app.include_router(part.router(service))
    _add_page(app)
    # The one added last sees a request first.
    app.add_middleware(BodyLimit, limit=config.max_body)
    if config.api_key is not None:
        app.add_middleware(ApiKey, key=config.api_key)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app.add_middleware(errors.Failures)
    app.add_middleware(CountResponses, metrics=service.metrics)
    app.add_middleware(RequestIds)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    target, link = service.config.target, service.link
    turning = []
    if target is not None:
        turning.append(asyncio.create_task(speed.follow_load(service, target)))
    if link is not None:
        turning.append(asyncio.create_task(link.follow(service.knob)))
    yield
    service.draining = True
    for task in turning:
        task.cancel()
    await asyncio.to_thread(service.engine.close)


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE), name="page")
