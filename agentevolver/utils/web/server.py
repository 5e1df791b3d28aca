"""uvicorn server that shuts down cleanly on SIGINT and SIGTERM, with limits on every HTTP/1.1 connection.

The limits hold before any application, and so any token check, is asked. uvicorn's httptools protocol bounds neither
the size of a request's head (request line and header fields) nor the time it takes to arrive, and its h11 protocol the
size alone. Here both are bounded, by connection and over all connections of the server, and a request that cannot be
read is answered in JSON.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

# What anybody can cause as often as they like (a request that cannot be read, an upgrade that is not made) is not
# logged.
_quiet = logging.getLogger(__name__)
_quiet.setLevel(logging.ERROR)
ErrorBody = Callable[[int, str], dict[str, Any]]


def plain_error(status: int, detail: str) -> dict[str, Any]:
    """Return the JSON body of an error as FastAPI forms it."""
    return {"detail": detail}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what a peer may send and hold, whoever it is.

    - `head_bytes`, `head_fields`: size of one request's head.
    - `head_s`: seconds from the first byte of a request, or from the connection's start, to the end of the head.
    - `body_bytes`, `body_s`: size of a body, and seconds from the end of the head to the end of the body.
    - `idle_s`: seconds that a connection may wait for its next request.
    - `connections`: open connections, three quarters of the open files at most; beyond it, whoever has waited longest
        for a head is closed.
    - `waiting_bytes`: bytes of unfinished heads over all connections; beyond it the same.
    """

    head_bytes: int = 32 * 1024
    head_fields: int = 100
    head_s: float = 10.0
    body_bytes: int = 2 * 1024 * 1024
    body_s: float = 120.0
    idle_s: float = 75.0
    connections: int = 4096
    waiting_bytes: int = 8 * 1024 * 1024


class Waiting:
    """Connections whose next head is not complete, the longest waiting first, and how many bytes of it each holds."""

    def __init__(self, limits: Limits) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections = min(limits.connections, max(1, files * 3 // 4))
        self._waiting_bytes = limits.waiting_bytes
        self._held: dict[LimitedProtocol, int] = {}
        self._ending: set[LimitedProtocol] = set()
        self._bytes = 0

    def hold(self, connection: LimitedProtocol, count: int, connections: int) -> None:
        """Set how many bytes a connection holds, of how many connections;
        close the longest waiting ones beyond a limit."""
        self._bytes += count - self._held.get(connection, 0)
        self._held[connection] = count
        while self._held and (self._bytes > self._waiting_bytes or connections - len(self._ending) > self._connections):
            oldest = next(iter(self._held))
            self.forget(oldest)
            self._ending.add(oldest)
            oldest.transport.abort()

    def forget(self, connection: LimitedProtocol) -> None:
        """Take a connection out: its head is complete."""
        self._bytes -= self._held.pop(connection, 0)

    def lost(self, connection: LimitedProtocol) -> None:
        """Take a connection out for good: it is closed."""
        self.forget(connection)
        self._ending.discard(connection)


class LimitedConfig(uvicorn.Config):
    """uvicorn's configuration of a server whose connections have limits;
    `error_body` makes the JSON of what cannot be read."""

    def __init__(self, app: Any, limits: Limits, error_body: ErrorBody = plain_error, **options: Any) -> None:
        super().__init__(app, http=LimitedProtocol, ws="none", timeout_keep_alive=round(limits.idle_s), **options)
        self.limits = limits
        self.error_body = error_body
        self.waiting = Waiting(limits)


class _Phase(Enum):
    """Of the message that is being read: its head or its body is not complete; nothing is being read."""

    HEAD = auto()
    BODY = auto()
    NONE = auto()


class _TooLarge(Exception):
    """The head exceeds its limit."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Every message must be complete in time:
    its head within `head_s`, its body within `body_s` after that."""

    def __init__(
        self,
        config: LimitedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _quiet
        self._limits = config.limits
        self._waiting = config.waiting
        self._error_body = config.error_body
        self._phase = _Phase.NONE
        self._timed: _Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._refusal = (400, "the request is no valid HTTP/1.1")
        self._fields = self._parsed = self._raw = 0
        self._began = False

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head."""
        super().connection_made(transport)
        self._time(_Phase.HEAD)
        self._waiting.hold(self, 0, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._waiting.lost(self)
        self._time(_Phase.NONE)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, then set the clock by what is still missing:
        none runs for a request that comes in one piece."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._phase is _Phase.BODY:
            self._time(_Phase.BODY)
        elif self._phase is _Phase.HEAD or self.cycle is None or self.cycle.response_complete:
            self._head_is_unfinished(len(data))
        else:
            self._time(_Phase.NONE)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self._phase is _Phase.NONE and not self.pipeline and not self.transport.is_closing():
            self._waiting.hold(self, 0, len(self.connections))

    # -- the parser's callbacks; what they raise ends in `send_400_response`

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._phase, self._began = _Phase.HEAD, True
        self._fields = self._parsed = self._raw = 0

    def on_url(self, url: bytes) -> None:
        """Count a piece of the request's target."""
        self._parsed += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header field."""
        self._parsed += len(name) + len(value) + 4
        self._fields += 1
        if self._parsed > self._limits.head_bytes or self._fields > self._limits.head_fields:
            self._refusal = (431, self._head_limit)
            raise _TooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the application."""
        super().on_headers_complete()
        self._phase = _Phase.BODY
        self._waiting.forget(self)

    def on_message_complete(self) -> None:
        """Take note of the body's end."""
        super().on_message_complete()
        self._phase = _Phase.NONE

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read, and close."""
        status, detail = self._refusal
        self._answer(status, detail)

    # -- limits

    def _head_is_unfinished(self, size: int) -> None:
        # What came with the head's beginning may have held an earlier request too; what came later is all of this head,
        # and of it the parser keeps a field that has not ended to itself.
        self._raw += 0 if self._began else size
        self._began = False
        if self._raw > self._limits.head_bytes:
            self._answer(431, self._head_limit)
            return
        self._time(_Phase.HEAD)
        self._waiting.hold(self, self._raw + size, len(self.connections))

    @property
    def _head_limit(self) -> str:
        return (
            f"the request line and header fields must not exceed {self._limits.head_bytes} bytes and "
            f"{self._limits.head_fields} fields"
        )

    def _time(self, phase: _Phase) -> None:
        """Let the clock of a phase run, unless it does already; NONE stops it."""
        if phase is self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timed, self._timer = phase, None
        if phase is not _Phase.NONE:
            self._timer = self.loop.call_later(
                self._limits.head_s if phase is _Phase.HEAD else self._limits.body_s, self._expire
            )

    def _expire(self) -> None:
        if self.transport.is_closing():
            return
        phase, self._timed = self._timed, None
        if self.flow.read_paused and phase is not None:
            self._time(phase)  # it is the application that has not taken what came
        elif self._phase is _Phase.NONE or (self._phase is _Phase.BODY and self.cycle.response_started):
            self.transport.close()
        else:
            limit = self._limits.head_s if phase is _Phase.HEAD else self._limits.body_s
            self._answer(408, f"the request was not complete within {limit:g} s")

    def _answer(self, status: int, detail: str) -> None:
        """Write an error of the connection itself, and close."""
        body = orjson.dumps(self._error_body(status, detail))
        fields = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + fields + body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn that does not die of the signal that stopped it,
    so that what is open can be closed and Ctrl-C is an ordinary end.

    Args:
        config: of the server.
        when_listening: called once, when the first connection would be taken.
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
