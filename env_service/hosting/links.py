"""Worker connections, the service's end: `LinkServer` accepts them, `Link` carries the calls of one worker.

Workers dial a Unix socket, or a TCP port for hosts on other nodes, and show the secret they were started with.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from typing import NamedTuple, cast

from env_service.hosting.processes import new_folder, remove_folder
from env_service.hosting.wire import Address, Frame, FrameKind, WireDecoder, WireError, encode, unpack, watch_peer

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 10.0
SETTLE_S = 0.02


class WorkerGone(Exception):
    """The worker's connection closed: the process ended, was killed, or broke the protocol."""


class CallTooLong(Exception):
    """A call got no reply in time."""


class LinkReply(NamedTuple):
    """Reply of a worker: `kind` is OK, BAD_REQUEST or FAILED, `payload` is JSON."""

    kind: FrameKind
    payload: bytes


class Link(asyncio.Protocol):
    """One worker's connection, with many calls at a time. When it closes, every waiting call fails with
    `WorkerGone`."""

    def __init__(self, link_server: LinkServer) -> None:
        self._link_server = link_server
        self._decoder = WireDecoder()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[LinkReply]] = {}
        self._late: set[int] = set()
        self._next = 0
        self._loop = asyncio.get_running_loop()
        self._hello_timer: asyncio.TimerHandle | None = None
        self.worker = ""
        self.pid = 0
        self.on_lost: Callable[[], None] | None = None
        self.closed = asyncio.Event()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def stuck(self) -> int:
        """Number of given-up calls that have not ended: threads of the worker that may hang."""
        return len(self._late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            watch_peer(sock)
        if self._link_server.stopped:  # the worker dialed while the service stopped
            self.close()
            return
        self._link_server.links.add(self)
        self._hello_timer = self._loop.call_later(HELLO_TIMEOUT_S, self.close)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
        except WireError as error:
            logger.error("worker %s broke the protocol and is dropped: %s", self.worker or "(unknown)", error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        waiting, self._waiting, self._transport = self._waiting, {}, None
        self._late.clear()
        self._link_server.links.discard(self)
        self.closed.set()
        for future in waiting.values():
            if not future.done():
                future.set_exception(WorkerGone(f"worker {self.worker} (pid {self.pid}) ended"))
        if self.on_lost is not None:
            self.on_lost()

    async def call(self, kind: FrameKind, payload: bytes, timeout_s: float) -> LinkReply:
        """Send a request and return its reply; raises WorkerGone, CallTooLong, or WireError for an oversized
        payload."""
        if self._transport is None:
            raise WorkerGone(f"worker {self.worker} (pid {self.pid}) ended")
        self._next += 1
        number = self._next
        self._transport.write(encode(number, kind, payload))
        future: asyncio.Future[LinkReply] = self._loop.create_future()
        self._waiting[number] = future
        timer = self._loop.call_later(timeout_s, self._give_up, number)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)

    def close(self) -> None:
        if self._transport is not None:
            # The worker notices and ends by itself.
            self._transport.abort()

    def _give_up(self, number: int) -> None:
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        self._late.add(number)
        if self._transport is not None:
            self._transport.write(encode(number, FrameKind.CANCEL, b""))
        future.set_exception(CallTooLong())

    def _take(self, frame: Frame) -> None:
        if not self.worker:
            self._greet(frame)
            return
        self._late.discard(frame.call)
        future = self._waiting.get(frame.call)
        if future is not None and not future.done():
            future.set_result(LinkReply(frame.kind, frame.payload))

    def _greet(self, frame: Frame) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        hello = unpack(frame.payload) if frame.kind is FrameKind.HELLO else None
        if not isinstance(hello, dict) or not isinstance(hello.get("pid"), int):
            raise WireError("the first frame is not a hello")
        worker, secret = str(hello.get("worker")), str(hello.get("secret"))
        if not self._link_server.admit(worker, secret, self):
            raise WireError(f"worker {worker!r} is not expected, or its secret is wrong")
        self.worker, self.pid = worker, hello["pid"]


class LinkServer:
    def __init__(self) -> None:
        self._folder: str | None = None
        self._servers: list[asyncio.Server] = []
        self._expected: dict[str, tuple[str, asyncio.Future[Link]]] = {}
        self._remote: Address | None = None
        self.local = Address(None)
        self.links: set[Link] = set()
        self.stopped = False

    async def start(self) -> None:
        """Listen on a Unix socket that only this user can reach."""
        self._folder = new_folder(len("/workers"))
        path = os.path.join(self._folder, "workers")
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(lambda: Link(self), path, backlog=1024))
        self.local = Address(path)

    async def remote(self, interface: str) -> Address:
        """Return an address for workers on other nodes; `interface` is this node's address in the cluster."""
        # The TCP port is opened only when a remote host needs it.
        if self._remote is None:
            server = await asyncio.get_running_loop().create_server(lambda: Link(self), interface, 0, backlog=1024)
            self._servers.append(server)
            self._remote = Address(None, interface, server.sockets[0].getsockname()[1])
        return self._remote

    def expect(self, worker: str) -> tuple[str, asyncio.Future[Link]]:
        """Announce a worker; returns its secret and the future of its connection."""
        secret = secrets.token_hex(16)
        future: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._expected[worker] = (secret, future)
        return secret, future

    def forget(self, worker: str) -> None:
        self._expected.pop(worker, None)

    def admit(self, worker: str, secret: str, link: Link) -> bool:
        """Accept a worker if it is expected and knows its secret, which works once."""
        expected = self._expected.get(worker)
        if expected is None or not hmac.compare_digest(expected[0], secret) or expected[1].done():
            return False
        del self._expected[worker]
        expected[1].set_result(link)
        return True

    async def stop(self) -> None:
        self.stopped = True
        for link in list(self.links):
            link.close()
        await asyncio.sleep(SETTLE_S)  # time for closed connections to report, and for late ones to be refused
        for server in self._servers:
            server.close()
        for _, future in self._expected.values():
            future.cancel()
        self._servers.clear()
        self._expected.clear()
        remove_folder(self._folder)
