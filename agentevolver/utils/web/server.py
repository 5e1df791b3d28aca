"""uvicorn with bounded heads and connections, and a clean end on SIGINT and SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
CONNECTIONS = 4096
IDLE_S = 75
# Any client could fill the log: uvicorn logs each unreadable request and each upgrade.
_quiet = logging.getLogger(__name__)
_quiet.setLevel(logging.ERROR)


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _quiet
        self._head_bytes = 0
        self._in_body = False

    # uvicorn's httptools protocol (0.54) takes a head of any size and keeps it all. Its h11 protocol has a bound, and
    # costs 0.25 ms of CPU a request instead of 0.06.
    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES + len(data):
                self.send_400_response("the request's head is too large")
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._head_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()


class WebServer(uvicorn.Server):
    """uvicorn whose `serve` returns after a signal. `when_listening` is called once the server accepts connections."""

    def __init__(self, config: uvicorn.Config, when_listening: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._when_listening = when_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._when_listening is not None:
            self._when_listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own version (0.54) raises the signal again afterwards, which would end the process.
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def server_config(app: Any, *, stop_s: int, **options: Any) -> uvicorn.Config:
    """`stop_s`: seconds that requests in flight have left when the server stops."""
    ours: dict[str, Any] = {
        "http": BoundedProtocol,
        "ws": "none",
        "limit_concurrency": CONNECTIONS,
        "timeout_keep_alive": IDLE_S,
        "timeout_graceful_shutdown": stop_s,
        "access_log": False,
        "server_header": False,
        # Do not trust a proxy's headers.
        "proxy_headers": False,
    }
    return uvicorn.Config(app, **{**ours, **options})
