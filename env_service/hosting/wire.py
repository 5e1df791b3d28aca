"""Frames between the service and its workers: length, call id, kind, JSON payload.

Workers may run an agent's code, so payloads are JSON and never pickles, lengths are bounded, and a malformed frame ends
the connection (`WireError`).
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import orjson

HEADER = struct.Struct("!IQB")
MAX_FRAME_BYTES = 64 * 1024 * 1024
# A machine that loses power or network closes nothing: after this silence its connections are closed here.
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_PROBES = 5, 3, 3
SILENCE_S = KEEPALIVE_IDLE_S + KEEPALIVE_EVERY_S * KEEPALIVE_PROBES


class FrameKind(IntEnum):
    """Requests are below 32, replies from 32 on."""

    HELLO = 1
    CREATE = 2
    STEP = 3
    EVALUATE = 4
    INFO = 5
    CLOSE = 6
    PROFILE = 7
    CANCEL = 8
    OK = 32
    BAD_REQUEST = 33
    FAILED = 34


class WireError(Exception):
    """The peer broke the protocol; the connection is unusable."""


class Frame(NamedTuple):
    """One message: `call` pairs a reply with its request."""

    call: int
    kind: FrameKind
    payload: bytes


class Address(NamedTuple):
    """Address of the service for a worker: a Unix socket path on the same machine, else host and port."""

    path: str | None
    host: str | None = None
    port: int = 0


def encode(call: int, kind: FrameKind, payload: bytes) -> bytes:
    """Return the bytes of one frame; raise WireError above MAX_FRAME_BYTES."""
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a payload of {len(payload)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return HEADER.pack(len(payload), call, kind) + payload


class WireDecoder:
    """Decoder of a byte stream into frames; the pieces may have any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes; raise WireError for an unknown kind or an oversized length."""
        self._buffer += data
        start, end = 0, len(self._buffer)
        try:
            while end - start >= HEADER.size:
                length, call, kind = HEADER.unpack_from(self._buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise WireError(f"a frame announces {length} bytes, more than the limit of {MAX_FRAME_BYTES}")
                stop = start + HEADER.size + length
                if stop > end:
                    return
                try:
                    # Replies stay bytes on their way to the HTTP client: the service does not parse them.
                    frame = Frame(call, FrameKind(kind), bytes(self._buffer[start + HEADER.size : stop]))
                except ValueError:
                    raise WireError(f"a frame has the unknown kind {kind}") from None
                start = stop
                yield frame
        finally:
            del self._buffer[:start]


def _listed(value: Any) -> Any:
    if hasattr(value, "tolist"):  # an array or a tensor
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def pack(data: Any) -> bytes:
    """Serialise to JSON; raise TypeError if a value has no JSON form."""
    try:
        return orjson.dumps(data, default=_listed, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Python's own encoder takes numbers as keys, and half a surrogate pair, which becomes U+FFFD.
        try:
            text = json.dumps(data, default=_listed, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise TypeError(str(error)) from error
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def unpack(payload: bytes) -> Any:
    """Parse JSON; raise WireError."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise WireError(f"a payload is not JSON: {error}") from error


def watch_peer(sock: socket.socket) -> None:
    """Have the kernel close a TCP connection whose peer has been silent for `SILENCE_S`."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        (socket.TCP_USER_TIMEOUT, SILENCE_S * 1000),  # for data that was sent but not acknowledged
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def connect(address: Address, worker: str, secret: str, pid: int, timeout_s: float = 20.0) -> socket.socket:
    """Dial the service and say hello; returns a blocking socket. Raises OSError."""
    if address.path is not None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: Any = address.path
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(sock)
        target = (address.host, address.port)
    try:
        sock.settimeout(timeout_s)
        sock.connect(target)
        sock.settimeout(None)
        sock.sendall(encode(0, FrameKind.HELLO, pack({"worker": worker, "secret": secret, "pid": pid})))
    except OSError:
        sock.close()
        raise
    return sock


def read_line(sock: socket.socket) -> bytes:
    """Read one line from a blocking socket; empty if the peer closed before its end."""
    line = b""
    while not line.endswith(b"\n"):
        data = sock.recv(1 << 16)
        if not data:
            return b""
        line += data
    return line
