"""JSON lines over a stream socket, for both ends: one request, one reply.

Inside the worker AppWorld freezes the clock while a world is open, so a wait without a limit does not read the clock.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

MAX_LINE_BYTES = 64 * 1024 * 1024


class ChannelClosed(Exception):
    """JSON values over a connected stream socket. Not thread-safe."""

    """The other end is gone."""


class Channel:
    def __init__(self, sock: socket.socket, received: bytes = b"") -> None:
        self.sock = sock
        self._buffer = bytearray(received)

    def send(self, value: Any) -> None:
        """Send one value; raises ChannelClosed if the other end is gone."""
        try:
            self.sock.sendall(json.dumps(value).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the next value; raises TimeoutError after `timeout_s` seconds, ChannelClosed at the end, ValueError
        for bad data."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > MAX_LINE_BYTES:
                raise ValueError(f"a line exceeds {MAX_LINE_BYTES} bytes")
            self._buffer += self._read(deadline)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return json.loads(line)

    def _read(self, deadline: float | None) -> bytes:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError("no answer in time")
        self.sock.settimeout(remaining)
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("the connection was closed")
        return data
