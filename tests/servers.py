"""The project's HTTP servers, small and whole: their applications as production makes them, and real sockets before
them."""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from agentevolver.utils import recipes
from agentevolver.utils.web.server import server_config
from agentevolver.view import app as view
from agentevolver.view.app import page_access
from agentevolver.view.experiment import Experiment
from env_service.hosting.service import EnvService
from env_service.http.app import documented_app, shielded
from env_service.settings import ServiceSettings
from tests.agentevolver.view.runs import make_run
from tests.recipe_runs import make_rounds

sys.path.append(str(Path(__file__).parent / "env_service"))

TOKEN = "right-token"


@dataclass(frozen=True)
class Served:
    """A server's ASGI application, and the FastAPI application that has its schema."""

    app: Any
    documented: FastAPI


@dataclass(frozen=True)
class Server:
    """How a server is made, and what may be asked of it."""

    make: Callable[[AsyncExitStack, Path, str], Awaitable[Served]]
    """`function(stack, folder, token)`."""
    goal: tuple[str, str, bytes]
    """Method, path and body of a route that changes or tells something."""
    health: str = "/healthz"
    error: tuple[str, ...] = ("detail",)
    """Keys from an error's body to its message."""
    also: tuple[str, ...] = ()
    """Keys beside the first of them."""


async def _environment(stack: AsyncExitStack, folder: Path, token: str) -> Served:
    from local_hosts import LocalLauncher

    settings = ServiceSettings({"counter": "counter_envs:Counter"}, token=token or None)
    service = EnvService(settings, LocalLauncher())
    await service.start()
    stack.push_async_callback(service.stop)
    return Served(shielded(service, settings), documented_app(service))


async def _page(stack: AsyncExitStack, folder: Path, token: str) -> Served:
    run = Experiment(make_rounds(make_run(folder / "pocket" / "demo")))
    page = view.create_app(run, page_access("127.0.0.1", token))

    async def end() -> None:
        async with page.router.lifespan_context(page):
            pass

    stack.push_async_callback(end)
    return Served(page, page)


SERVERS = {
    "environment": Server(
        _environment, ("POST", "/get_env_profile", b'{"env_type": "counter"}'), also=("success", "code")
    ),
    "page": Server(_page, ("DELETE", "/api/experience/default/e1", b"")),
}
"""The core's servers, and those of the recipes: `SERVER` in `tests/server.py` of the folder of one."""
for _found in sorted(recipes.FOLDER.glob("*/tests/server.py")):
    _name = _found.parents[1].name
    try:
        SERVERS[_name] = importlib.import_module(f"agentevolver.recipes.{_name}.tests.server").SERVER
    except ModuleNotFoundError as error:
        # A recipe of an environment that is not in this checkout.
        if not str(error.name).startswith("env_service.environments."):
            raise


@asynccontextmanager
async def all_apps(folder: Path) -> AsyncIterator[dict[str, Served]]:
    async with AsyncExitStack() as stack:
        yield {name: await server.make(stack, folder, TOKEN) for name, server in SERVERS.items()}


@contextmanager
def all_sockets(folder: Path, **options: Any) -> Iterator[dict[str, int]]:
    """Serve all on free loopback ports, on a loop in a thread of its own; yields the ports. `options` are uvicorn's."""
    ports: dict[str, int] = {}
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with all_apps(folder) as apps:
            servers = []
            for name, one in apps.items():
                listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
                ports[name] = listener.getsockname()[1]
                config = server_config(one.app, stop_s=2, lifespan="off", log_level="critical", **options)
                server = uvicorn.Server(config)
                servers.append((server, asyncio.create_task(server.serve(sockets=[listener]))))
            while not all(server.started for server, _ in servers):
                await asyncio.sleep(0.01)
            ready.set()
            await asyncio.to_thread(stop.wait)
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*(task for _, task in servers))

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60), "the servers did not start"
        yield ports
    finally:
        stop.set()
        thread.join()


def request(method: str, path: str, body: bytes = b"", *, close: bool = True, **headers: str) -> bytes:
    """Return a request as it goes over the wire; `host=""` leaves that header out."""
    known = {
        "host": "127.0.0.1",
        "content_length": str(len(body)),
        **({"content_type": "application/json"} if body else {}),
        **headers,
    }
    if close:
        known.setdefault("connection", "close")
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in known.items() if value]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def bearer(token: str = TOKEN) -> dict[str, str]:
    """Return the header that carries the token."""
    return {"authorization": f"Bearer {token}"}
