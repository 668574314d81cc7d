"""Errors as the OpenAI API shapes them, for every status and whoever raised it.

`install` shapes what routes raise on purpose, `Failures` what nobody expected.

Knows nothing about routes.
"""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marslm.errors import InputError
from marslm.serve.schemas import ErrorBody

logger = logging.getLogger("marslm.serve.request")

_UNION_ARM = re.compile(r"(str|int|float|bool|list\[.*|constrained-.*|function-.*)$")


class ApiError(Exception):
    """An answer other than the wanted one.

    param: the request field at fault. retry_after: seconds after which to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Keep what the response says."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "invalid_request_error"
        if self.status in (401, 429):
            kind = {401: "authentication_error", 429: "rate_limit_error"}[self.status]
        elif self.status >= 500:
            kind = "server_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def response(self) -> JSONResponse:
        """The response."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def of_input(error: InputError, param: str | None = None) -> ApiError:
    """Return the 400 for input that a person can mend."""
    return ApiError(400, str(error), param=param)


def of_failure() -> ApiError:
    """Return the 500 for a fault of this program; the log has the details."""
    return ApiError(500, "the request failed inside the server; its log says why")


class Failures:
    """Answers with the 500 for whatever else a request raises, and logs it.

    A handler of all exceptions would do so too, but outside of all middleware, where a response is
    not counted and gets no id.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception as error:
            if started:
                raise  # too late for another answer: the server cuts the connection and logs why
            logger.error("request failed", exc_info=error)
            await of_failure().response(scope, receive, send)


def install(app: FastAPI) -> None:
    """Shape the errors that an app's routes raise."""

    @app.exception_handler(ApiError)
    async def _(request: Request, error: ApiError) -> JSONResponse:
        return error.response

    @app.exception_handler(InputError)
    async def _(request: Request, error: InputError) -> JSONResponse:
        return of_input(error).response

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> JSONResponse:
        return _of_validation(error).response

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> JSONResponse:
        place = f": {request.method} {request.url.path}" if error.status_code in (404, 405) else ""
        shaped = ApiError(error.status_code, error.detail + place)
        return JSONResponse(shaped.body, error.status_code, error.headers)


def _of_validation(error: RequestValidationError) -> ApiError:
    """Return the 400 that names one field at fault, the innermost."""
    first = max(error.errors(), key=lambda each: len(each["loc"]))
    # The first place is "body", and a union adds the name of the type that it tried.
    place = [str(part) for part in first["loc"][1:] if not _UNION_ARM.match(str(part))]
    param = ".".join(place) or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"Unrecognized request argument supplied: {param}", param=param)
    if first["type"] == "missing":
        return ApiError(400, f"Missing required parameter: '{param}'", param=param)
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {first['ctx']['error']}")
    named = f"Invalid value for '{param}'" if param else "Invalid body"
    return ApiError(400, f"{named}: {first['msg']}", param=param)


def describe(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the schema says of error responses."""
    return {
        status: {"model": ErrorBody, "description": HTTPStatus(status).phrase}
        for status in statuses
    }
