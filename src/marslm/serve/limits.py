"""What is refused before a route sees it: a missing key, a body that is too large.

Knows nothing about routes, beyond that those under /v1 need the key.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marslm.serve.errors import ApiError


class ApiKey:
    """Wants `Authorization: Bearer KEY` of every request under /v1."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        """Wrap an app."""
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http" and _needs_key(scope) and not self._knows(scope):
            error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
            await error.response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        # Comparing takes the same time wherever the first difference is.
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, self._expected)


def _needs_key(scope: Scope) -> bool:
    """Return whether a path leads under /v1; below a mount or a prefix it begins with that."""
    path: str = scope["path"]
    return any(p.startswith("/v1") for p in (path, path.removeprefix(scope.get("root_path", ""))))


class BodyLimit:
    """Refuses bodies of more than `limit` bytes, whatever their headers say."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        """Wrap an app."""
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self._limit:
            await self._error.response(scope, receive, send)
            return
        read = 0

        async def receive_counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                # FastAPI lets this error alone pass while it reads a body.
                raise HTTPException(413, self._error.message)
            return message

        await self._app(scope, receive_counted, send)

    @property
    def _error(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._limit} bytes: send less")
