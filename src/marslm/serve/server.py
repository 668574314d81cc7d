"""The process: sockets, signals and a drain before the end.

Knows nothing about routes.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from marslm.errors import InputError

_LAST_WORDS = 5
"""Seconds that answers cut off at the end of a drain have to say so."""


class Server(uvicorn.Server):
    """Stops listening at the first SIGTERM or SIGINT, lets running answers end, and returns."""

    def __init__(self, config: uvicorn.Config, drain: float) -> None:
        """`drain`: seconds that running answers have; then they end with an error."""
        super().__init__(config)
        self._drain = drain

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, but cut answers off with an error event, not in silence."""
        app = self.config.app
        loop = asyncio.get_running_loop()
        if isinstance(app, FastAPI):
            loop.call_later(self._drain, app.state.service.engine.interrupt)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Say that no more requests are welcome, then stop as uvicorn does."""
        app = self.config.app
        if isinstance(app, FastAPI):
            app.state.service.draining = True
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals; unlike uvicorn, do not die of them once everything has ended well."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, on a free port for port 0; InputError if it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"cannot listen on {host} port {port} ({reason}): name others with --host and --port"
        ) from error


def make_server(app: FastAPI, *, drain: int) -> Server:
    """Return a server, not yet started, that leaves logs as they are set up.

    drain: seconds that running answers have once it is told to stop.
    """
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=drain + _LAST_WORDS
    )
    return Server(config, drain)
