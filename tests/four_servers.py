"""The project's four HTTP servers, small and whole: their applications as production makes them, and real sockets
before them."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from agentevolver.recipes.offline.teacher import service as teacher
from agentevolver.recipes.reme import service as experience
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import server_config
from agentevolver.view import app as view
from agentevolver.view.app import page_access
from agentevolver.view.experiment import Experiment
from env_service.hosting.service import EnvService
from env_service.http.app import documented_app, shielded
from env_service.registry import resolve
from env_service.settings import ServiceSettings
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Store
from tests.agentevolver.view.runs import make_run
from tests.recipe_runs import make_rounds

sys.path += [str(Path(__file__).parent / folder) for folder in ("env_service", "experience_manager")]

NAMES = ("environment", "experience", "page", "teacher")
TOKEN = "right-token"


@dataclass(frozen=True)
class Served:
    """One server: its ASGI application, and the FastAPI application that has its schema."""

    name: str
    app: Any
    documented: FastAPI


@asynccontextmanager
async def four_apps(folder: Path, token: str = TOKEN, host: str = "127.0.0.1") -> AsyncIterator[dict[str, Served]]:
    """Make the four, with a PocketWorld, an empty store, a made-up run and a scripted summariser."""
    from experience_fakes import SMALL, teller
    from local_hosts import LocalLauncher

    async with AsyncExitStack() as stack:
        settings = ServiceSettings(resolve(["pocket"], []), token=token or None, host=host)
        service = EnvService(settings, LocalLauncher())
        await service.start()
        stack.push_async_callback(service.stop)
        store = stack.enter_context(Store(folder / "store.sqlite"))
        pool = experience.ExperienceService(
            ExperienceSettings(), store, SMALL, teller(), author="m", dump_dir=folder / "dumps"
        )
        pool_app = experience.create_app(pool, Access(host, token, "EXPERIENCE_SERVICE_TOKEN"))
        page = view.create_app(Experiment(make_rounds(make_run(folder / "pocket" / "demo"))), page_access(host, token))
        stack.push_async_callback(_ended(page))
        model = teacher.make_app(teacher.Teacher(), access=Access(host, token, teacher.TEACHER_TOKEN))
        documented = documented_app(service)
        served = (
            Served("environment", shielded(service, settings), documented),
            Served("experience", pool_app, pool_app),
            Served("page", page, page),
            Served("teacher", model, model),
        )
        yield {one.name: one for one in served}


def _ended(app: FastAPI) -> Any:
    """Return what runs the end of an application's lifespan."""

    async def end() -> None:
        async with app.router.lifespan_context(app):
            pass

    return end


@contextmanager
def four_sockets(folder: Path, token: str = TOKEN, **options: Any) -> Iterator[dict[str, int]]:
    """Serve the four on free loopback ports, on a loop in a thread of its own; yields the ports. `options` are
    uvicorn's."""
    ports: dict[str, int] = {}
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with four_apps(folder, token) as apps:
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
