"""Running a service: one event loop for HTTP, workers and Ray's answers, from the bound port to the last process gone.

The port is bound before Ray starts, so that an occupied one is a one-line error at once. While hosts come up, /healthz
answers 503.
SIGTERM and SIGINT stop it: instances are closed, workers ended, a private Ray shut down, the port freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from agentevolver.utils.net import address_to_bind
from agentevolver.utils.secrets import forget, secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.protocol import Limits
from agentevolver.utils.web.server import server_config
from env_service.api import error_body, shielded
from env_service.cluster import Cluster, HostFailed
from env_service.service import Service
from env_service.settings import TOKEN_VARIABLE, ServiceSettings

logger = logging.getLogger(__name__)

GRACE_S = 5
MANY_FILES = 4096


class StartError(Exception):
    """The service cannot start; the message is one line that says why and what to do."""


def take_token(host: str) -> str | None:
    """Return the token from the environment and remove it there (environments must not see it); raise StartError if one
    is needed."""
    token = secret(TOKEN_VARIABLE)
    forget([TOKEN_VARIABLE])
    try:
        Access(host, token, TOKEN_VARIABLE)
    except ValueError as error:
        raise StartError(f"--host {error}") from error
    return token or None


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise StartError if the port is taken or the host is none of this machine."""
    sock: socket.socket | None = None
    try:
        family, address = address_to_bind(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # accepted sockets inherit it; without it a reply waits 40 ms for an ACK
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise StartError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or stop what uses it"
        ) from error
    sock.setblocking(False)
    return sock


def serve(settings: ServiceSettings) -> None:
    """Run until a signal; raise StartError if it cannot start."""
    sock = bind(settings.host, settings.port)
    with contextlib.closing(sock):
        import uvloop

        _allow_many_files()
        uvloop.run(_run(settings, sock))


def _allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: every instance and every client costs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < MANY_FILES:
        logger.warning(
            "only %d files can be open (it was %d); many clients or isolated instances need more (ulimit -n)",
            hard,
            soft,
        )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: this module decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def _run(settings: ServiceSettings, sock: socket.socket) -> None:
    stop = asyncio.Event()
    _stop_on_signals(stop)
    cluster = Cluster(settings.ray_address)
    service = Service(settings, cluster)
    config = server_config(
        shielded(service, settings),
        Limits(body_bytes=settings.max_body_bytes),
        error_body,
        stop_s=GRACE_S,
        loop="none",
        lifespan="off",
        log_config=None,
        date_header=False,
        backlog=2048,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    starting = asyncio.create_task(_start(cluster, service), name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({serving, starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not stopping.done():
            starting.result()
            _stop_on_signals(stop)  # Ray has put handlers of its own in their place
            host, port = sock.getsockname()[:2]
            logger.info("serving %s on http://%s:%d", ", ".join(settings.environments), host, port)
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            raise StartError("the HTTP server ended by itself; the log above says why")
    finally:
        await _shut_down(cluster, service, server, serving, [starting, stopping])


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _start(cluster: Cluster, service: Service) -> None:
    try:
        await cluster.start()
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise StartError(f"Ray cannot be started or joined: {str(error).splitlines()[0]}") from error
    try:
        await service.start()
    except HostFailed as error:
        raise StartError(f"an environment cannot be hosted: {error}") from error


async def _shut_down(
    cluster: Cluster,
    service: Service,
    server: uvicorn.Server,
    serving: asyncio.Task[None],
    others: list[asyncio.Task[Any]],
) -> None:
    logger.info("stopping")
    for task in others:
        task.cancel()
    await service.stop()
    server.should_exit = True
    await asyncio.wait({serving}, timeout=GRACE_S + 5)
    await asyncio.gather(*others, return_exceptions=True)
    await cluster.stop()
    logger.info("stopped")
