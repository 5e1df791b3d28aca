"""uvicorn as the project's servers run it: bounded heads and connections, and a clean end on SIGINT and SIGTERM."""

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
# Anybody can cause what uvicorn would log here (an unreadable request, an upgrade), as often as they like.
_quiet = logging.getLogger(__name__)
_quiet.setLevel(logging.ERROR)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a bounded head.

    uvicorn's httptools protocol takes a head of any size. Its h11 protocol has a bound, and costs 0.25 ms of CPU a
    request where this one costs 0.06: the environment service answers one request a turn.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _quiet
        self._head_bytes = 0
        self._in_body = False

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of a head. The parser keeps it all, also a field that has not ended."""
        if not self._in_body:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES + len(data):
                self.send_400_response("the request's head is too large")
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Begin to count anew."""
        self._head_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next head."""
        self._in_body = False
        super().on_message_complete()


class WebServer(uvicorn.Server):
    """uvicorn that survives the signal that stops it, so that its caller can clean up and Ctrl-C is an ordinary end.

    Args:
        config: of the server.
        when_listening: called once, when the first connection would be accepted.
    """

    def __init__(self, config: uvicorn.Config, when_listening: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._when_listening = when_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self.started and self._when_listening is not None:
            self._when_listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop serving at SIGINT and SIGTERM. uvicorn's own raises the signal again afterwards."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def server_config(app: Any, *, stop_s: int, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration of a server of ours.

    Args:
        app: the ASGI application.
        stop_s: seconds that requests in flight have left once the server is told to stop.
        options: further options of uvicorn, such as host and port.
    """
    ours: dict[str, Any] = {
        "http": BoundedProtocol,
        "ws": "none",
        "limit_concurrency": CONNECTIONS,
        "timeout_keep_alive": IDLE_S,
        "timeout_graceful_shutdown": stop_s,
        "access_log": False,
        "server_header": False,
        # Headers that a proxy may set are not believed.
        "proxy_headers": False,
    }
    return uvicorn.Config(app, **{**ours, **options})
