"""Logs as one JSON object a line, each with the request it belongs to.

Knows nothing about what is logged.
"""

from __future__ import annotations

import contextvars
import json
import logging
import re
import sys
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marslm.errors import InputError

request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)

LEVELS = ("debug", "info", "warning", "error")

_HEADER = "x-request-id"
_ACCEPTABLE = re.compile(r"[\w.:-]{1,128}")
_OWN = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """Formats a record and its `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (number := request_id.get()) is not None:
            entry["request_id"] = number
        entry |= {key: value for key, value in record.__dict__.items() if key not in _OWN}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_to_stderr(level: str) -> None:
    """Send this program's and uvicorn's logs to standard error, as JSON lines.

    Raises InputError for a level that is not one of `LEVELS`.
    """
    if level not in LEVELS:
        raise InputError(f"unknown log level {level!r}: choose from {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("marslm", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


class RequestIds:
    """Gives every request an id, its client's own if it sent one, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(_HEADER, "")
        number = sent if _ACCEPTABLE.fullmatch(sent) else uuid.uuid4().hex
        request_id.set(number)  # each request has a context of its own, which ends with it

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_HEADER] = number
            await send(message)

        await self._app(scope, receive, send_with_id)
