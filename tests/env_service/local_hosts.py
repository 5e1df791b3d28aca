"""Hosts without Ray and a service on a free loopback port: the protocol, processes and HTTP of production in a fraction
of the time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import psutil
import uvicorn

from agentevolver.utils.web.server import server_config
from env_service.hosting.cluster import HostFailed
from env_service.hosting.host import Description, Host, HostSpec
from env_service.hosting.service import EnvService
from env_service.hosting.wire import Address, connect
from env_service.hosting.worker import InstanceHost, serve_shared
from env_service.http.app import bind, shielded
from env_service.settings import ServiceSettings

COUNTER = {"counter": "counter_envs:Counter"}
LONELY = {"lonely": "counter_envs:LonelyCounter"}


async def failing_as_hosts_do(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a thread what an actor would do, with an actor's failures."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except (RuntimeError, OSError) as error:
        raise HostFailed(str(error)) from error


class LocalHost:
    """A host whose shared worker is a thread here and whose fork server is a child of this process."""

    def __init__(self, spec: HostSpec, node: str) -> None:
        self.node = node
        self.host = Host(spec)
        self._socket: socket.socket | None = None
        self._instance_host: threading.Thread | None = None

    async def describe(self) -> Description:
        return self.host.describe()

    async def serve(self, address: Address, worker: str, secret: str) -> None:
        self._socket = await asyncio.to_thread(connect, address, worker, secret, 0)
        instance_host = InstanceHost(self.host.env_class, self.host.spec.max_reply_bytes)
        arguments: dict[str, Any] = {
            "sock": self._socket,
            "instance_host": instance_host,
            "threads": self.host.spec.threads,
            "on_end": lambda: None,
        }
        self._instance_host = threading.Thread(target=serve_shared, kwargs=arguments, daemon=True)
        self._instance_host.start()

    async def start_fork_server(self) -> None:
        await failing_as_hosts_do(self.host.start_fork_server)

    async def spawn(self, address: Address, workers: list[tuple[str, str]]) -> None:
        await failing_as_hosts_do(self.host.spawn, address, workers)

    async def reap(self, workers: list[str]) -> None:
        await failing_as_hosts_do(self.host.reap, workers)

    def kill(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self.host.stop_fork_server()


class LocalLauncher:
    """Starts local hosts; `remote` makes them dial over TCP as if they were on another node."""

    interface = "127.0.0.1"
    nodes = 1

    def __init__(self, remote: bool = False) -> None:
        self.remote = remote
        self.refuse = False
        self.overfull: set[str] = set()
        self.hosts: list[LocalHost] = []

    async def launch(self, spec: HostSpec) -> LocalHost:
        if self.refuse:
            raise HostFailed("refused by the test")
        self.hosts.append(LocalHost(spec, "elsewhere" if self.remote else "here"))
        return self.hosts[-1]

    async def crowded(self, node: str) -> bool:
        return node in self.overfull

    def is_remote(self, node: str) -> bool:
        return node == "elsewhere"


@contextlib.asynccontextmanager
async def serving(
    environments: dict[str, str] = COUNTER, *, launcher: LocalLauncher | None = None, **options: Any
) -> AsyncIterator[Any]:
    """Run a service on a free port; yields an object with `url`, `service` and `launcher`."""
    settings = ServiceSettings(environments, **{"warm": 2, **options})
    launcher = launcher or LocalLauncher()
    service = EnvService(settings, launcher)
    sock = bind("127.0.0.1", 0)
    server = uvicorn.Server(server_config(shielded(service, settings), lifespan="off", log_config=None, stop_s=5))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    running = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await service.start()
        yield Running(f"http://127.0.0.1:{sock.getsockname()[1]}", service, launcher)
    finally:
        await service.stop()
        server.should_exit = True
        await running
        sock.close()


class Running:
    """A service that runs."""

    def __init__(self, url: str, service: EnvService, launcher: LocalLauncher) -> None:
        self.url = url
        self.service = service
        self.launcher = launcher


class Http:
    """Posts JSON and returns (status, body, headers), without any of the client's interpretation."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession()

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._session.close()

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any, Any]:
        """Post a JSON body, or `data=` as it is."""
        options = options if "data" in options else {"json": body, **options}
        options["headers"] = {**self._headers, **options.get("headers", {})}
        async with self._session.post(self.url + path, **options) as response:
            return response.status, await response.json(content_type=None), response.headers

    async def get(self, path: str, **options: Any) -> tuple[int, str]:
        """Get a text."""
        options["headers"] = {**self._headers, **options.get("headers", {})}
        async with self._session.get(self.url + path, **options) as response:
            return response.status, await response.text()


def started_here() -> list[psutil.Process]:
    """Return the processes that this one started, directly or not, but for Python's tracker of shared memory, which
    stays once it runs."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if not any("multiprocessing.resource_tracker" in part for part in process.cmdline()):
                found.append(process)
    return found


def say(text: Any) -> dict[str, Any]:
    """Return an action."""
    return {"role": "assistant", "content": str(text)}


async def eventually(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Wait until the condition holds and return its value; fail after the timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not (value := condition()):
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)
    return value
