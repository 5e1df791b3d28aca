"""Application of the page: its runs, access rules and server.

On loopback every user of the machine may read, and changes need the token that the console shows as `#token=...`, which
a browser sends to no server. Beyond loopback everything needs the token: `?token=...` once, then a cookie. Pages of
other origins may do neither (`agentevolver.utils.web`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from agentevolver.utils.errors import LaunchError, UsageError
from agentevolver.utils.health import PAGE, health_facts
from agentevolver.utils.net import LOGVIEW_PORT, port_is_free, take_port_from
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import WebServer, server_config
from agentevolver.utils.web.shield import Shield, answer_errors
from agentevolver.view.compare import differences, names_of
from agentevolver.view.experiment import Experiment, NotAnExperiment, ViewError, experiments_in
from agentevolver.view.routes import Json
from agentevolver.view.runs import Runs
from agentevolver.view.views import added_views

TOKEN_VARIABLE = "VIEW_TOKEN"
COOKIE = "view_token"
# Response headers that limit what a browser may do with the page.
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


def page_access(host: str, token: str = "") -> Access:
    """Return the access rules of a page bound to `host`. An empty token is replaced by a random one.

    Raises:
        ValueError: the token is unfit.
    """
    return Access(host, token or secrets.token_urlsafe(24), TOKEN_VARIABLE, True, "/api/session", COOKIE)


STATIC = Path(__file__).resolve().parent / "static"
MAX_BODY_BYTES = 64 * 1024


class WholeFiles(StaticFiles):
    """Static files without support for `Range`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette answers an unsatisfiable range with plain text; every error of the page is JSON.
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": headers}, receive, send)


def create_app(experiments: Experiment | Sequence[Experiment], access: Access, folders: Sequence[Path] = ()) -> FastAPI:
    """Return the application for these runs and for runs that start later in `folders`.

    Routes of the first run are below `/api`, routes of run n below `/runs/<n>/api`.
    """
    runs = Runs([experiments] if isinstance(experiments, Experiment) else experiments, folders)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        runs.close()

    app = FastAPI(title="AgentEvolver", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _protect(app, access)
    _page_routes(app, runs, access)
    app.include_router(runs.first)
    app.mount("/runs", runs)
    for view in added_views():
        app.mount(f"/extra/{view.name}", WholeFiles(directory=view.static))
    app.mount("/", WholeFiles(directory=STATIC, html=True))
    return app


def _page_routes(app: FastAPI, runs: Runs, access: Access) -> None:
    @app.get("/healthz")
    def health() -> Response:
        return Json(health_facts(PAGE))

    @app.get("/api/session")
    def session() -> Response:
        return Json({"token": access.token})

    @app.get("/api/views")
    def views() -> Response:
        return Json([{"name": view.name, "title": view.title, "order": view.order} for view in added_views()])

    @app.get("/api/runs")
    def all_runs() -> Response:
        known = runs.look()
        return Json([run.brief() | {"name": name} for name, run in zip(names_of(known), known, strict=True)])

    @app.get("/api/runs/differences")
    def run_differences() -> Response:
        return Json(differences(runs.look()))


def _protect(app: FastAPI, access: Access) -> None:
    app.add_middleware(Shield, access=access, body_bytes=MAX_BODY_BYTES, headers=HEADERS)
    answer_errors(app)

    @app.exception_handler(ViewError)
    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, ViewError)
        return Json({"detail": str(error)}, status_code=error.status)


logger = logging.getLogger("agentevolver.launcher.view")

HOST = "127.0.0.1"
# Seconds that requests in flight have to finish after the server was told to stop.
STOP_S = 2


class IdleWatch:
    """ASGI application that records the time of the latest request (`time.monotonic`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.asked_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.asked_at = time.monotonic()
        await self._app(scope, receive, send)


async def _serve(server: WebServer, watched: IdleWatch, idle_s: float | None) -> None:
    """Serve until a signal, or until no request came for `idle_s` seconds."""

    async def leave() -> None:
        assert idle_s is not None
        while (left := watched.asked_at + idle_s - time.monotonic()) > 0:
            await asyncio.sleep(left)
        logger.info("no request for %g minutes", idle_s / 60)
        server.should_exit = True

    # Without a limit, a server left behind by a run would run forever.
    leaving = asyncio.create_task(leave()) if idle_s is not None else None
    await server.serve()
    if leaving is not None:
        leaving.cancel()


def view(
    folders: Sequence[Path], host: str = HOST, port: int | None = None, *, idle_minutes: float | None = None
) -> None:
    """Serve the page of one or more runs until SIGINT or SIGTERM. Raises UsageError and LaunchError.

    Args:
        folders: runs, or folders of runs; runs that start later in such a folder appear too.
        host: address to bind; beyond loopback the page asks for a token.
        port: None: the first free port from `LOGVIEW_PORT` on.
        idle_minutes: stop after so long without a request; None: never.
    """
    try:
        runs = [Experiment(folder) for given in folders for folder in experiments_in(given)]
    except NotAnExperiment as error:
        raise UsageError(str(error)) from error
    chosen = take_port_from(LOGVIEW_PORT) if port is None else port
    if chosen is None or (port is not None and not port_is_free(port, host)):
        taken = f"no port is free from {LOGVIEW_PORT} on" if port is None else f"port {port} is taken"
        raise LaunchError(f"{taken}; give another one with --port")
    try:
        access = page_access(host, secret(TOKEN_VARIABLE))
    except ValueError as error:
        raise LaunchError(str(error)) from error
    app = IdleWatch(create_app(runs, access, folders))
    config = server_config(app, host=host, port=chosen, log_level="warning", stop_s=STOP_S)
    # The address is printed once the server listens; a browser that opens it earlier is refused.
    server = WebServer(config, when_listening=partial(_say_where, runs, access, chosen))
    asyncio.run(_serve(server, app, None if idle_minutes is None else 60 * idle_minutes))


def _say_where(runs: Sequence[Experiment], access: Access, port: int) -> None:
    watched = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    shown = f"[{access.host}]" if ":" in access.host else access.host
    url, token = f"http://{shown}:{port}/", quote(access.token, safe="")
    logger.info("watch %s at %s", watched, url if access.local else f"{url}?token={token}")
    if access.local:
        logger.info("to change experiences, open %s#token=%s", url, token)
