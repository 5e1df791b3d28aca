"""uvicorn for programs that end by being told to, with limits on every connection."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from agentevolver.utils.web.protocol import ErrorBody, LimitedConfig, Limits, plain_error


class Server(uvicorn.Server):
    """uvicorn that does not die of the signal that stopped it, so that what is open can be closed and Ctrl-C is an
    ordinary end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop serving at SIGINT and SIGTERM."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def server_config(
    app: Any, limits: Limits, error_body: ErrorBody = plain_error, *, stop_s: int, **options: Any
) -> LimitedConfig:
    """Return uvicorn's configuration of a server of ours.

    Args:
        app: the ASGI application.
        limits: of each connection and of all of them.
        error_body: makes the JSON of a request that cannot be read.
        stop_s: seconds that requests in flight have left once the server is told to stop.
        options: further options of uvicorn, such as host and port. Headers that a proxy may set are not believed unless
            they say so.
    """
    plain: dict[str, Any] = {"access_log": False, "server_header": False, "proxy_headers": False}
    return LimitedConfig(app, limits, error_body, timeout_graceful_shutdown=stop_s, **{**plain, **options})
