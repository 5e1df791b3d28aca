"""HTTP routes of the page, who may use them, and the server until it is told to stop.

Handlers are plain functions, which run in threads: a large file keeps nobody else waiting. The page is meant for one
person at one machine. On loopback, everybody on the machine may look; what changes something needs the token that only
the page itself can read. Beyond loopback, everything needs it: `?token=...` once, a cookie from then on. A web page of
somebody else's can do neither (`agentevolver.utils.web`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import orjson
from fastapi import Body, FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from agentevolver.errors import LaunchError, UsageError
from agentevolver.utils.health import PAGE, health_facts
from agentevolver.utils.net import LOGVIEW_PORT, port_is_free, take_port_from
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import Limits, Server, server_config
from agentevolver.utils.web.shield import Shield, answer_errors
from agentevolver.view.experience import ExperiencePool
from agentevolver.view.experiment import BadRequest, Experiment, NotAnExperiment, ViewError
from agentevolver.view.metrics import Metrics, usage
from agentevolver.view.rounds import Rounds
from agentevolver.view.samples import Samples
from agentevolver.view.system import Logs, System
from agentevolver.view.tasks import FATES, Tasks
from agentevolver.view.trajectories import FOLDERS, Filter, Trajectories, cursor

TOKEN_VARIABLE = "VIEW_TOKEN"
COOKIE = "view_token"
# What keeps a browser from doing more with an answer than to show it.
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
    """Return the rules of a page bound to `host`; a token is made up if none is given.

    Raises ValueError for one that cannot be sent.
    """
    return Access(host, token or secrets.token_urlsafe(24), TOKEN_VARIABLE, open_reading=True, cookie=COOKIE)


STATIC = Path(__file__).resolve().parent / "static"
MAX_BODY_BYTES = 64 * 1024
Number = Annotated[int, Query(ge=0)]
Limit = Annotated[int, Query(ge=1, le=500)]


class Json(Response):
    """JSON by orjson; what is no number in JSON (NaN) becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


class WholeFiles(StaticFiles):
    """Static files, always sent whole: the error of an impossible `Range` would not be JSON."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": headers}, receive, send)


def create_app(experiment: Experiment, access: Access) -> FastAPI:
    """Return the application for one run."""
    pool = ExperiencePool(experiment)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()

    app = FastAPI(title="AgentEvolver", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _protect(app, access)
    _run_routes(app, experiment, access)
    _trajectory_routes(app, experiment)
    _task_routes(app, Tasks(experiment.folder / "tasks"))
    _round_routes(app, Rounds(experiment.folder))
    _experience_routes(app, pool)
    app.mount("/", WholeFiles(directory=STATIC, html=True))
    return app


def _protect(app: FastAPI, access: Access) -> None:
    app.add_middleware(Shield, access=access, body_bytes=MAX_BODY_BYTES, headers=HEADERS)
    answer_errors(app)

    @app.exception_handler(ViewError)
    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, ViewError)
        return Json({"detail": str(error)}, status_code=error.status)


def _run_routes(app: FastAPI, experiment: Experiment, access: Access) -> None:
    metrics, logs, system = (
        Metrics(experiment.folder / "metrics.jsonl"),
        Logs(experiment.folder / "logs"),
        System(experiment),
    )

    @app.get("/healthz")
    def health() -> Response:
        return Json(health_facts(PAGE))

    @app.get("/api/session")
    def session() -> Response:
        return Json({"token": access.token})

    @app.get("/api/state")
    def state() -> Response:
        return Json(experiment.state() | {"versions": experiment.versions()})

    @app.get("/api/metrics")
    def read_metrics(
        name: Annotated[list[str] | None, Query(max_length=400)] = None, generation: Number = 0, since: Number = 0
    ) -> Response:
        return Json(metrics.read(name or [], generation=generation, since=since))

    @app.get("/api/metrics/names")
    def metric_names() -> Response:
        return Json(metrics.names())

    @app.get("/api/usage")
    def llm_usage() -> Response:
        return Json(usage(experiment))

    @app.get("/api/system")
    def read_system(since: float = 0.0) -> Response:
        return Json(system.read(since))

    @app.get("/api/run")
    def run() -> Response:
        return Json({"config": experiment.shown_config(), "launches": experiment.launches()})

    @app.get("/api/logs")
    def log_files() -> Response:
        return Json(logs.files())

    @app.get("/api/logs/{name}")
    def log(name: str, offset: int | None = Query(None, ge=0)) -> Response:
        return Json(logs.read(name, offset))


def _trajectory_routes(app: FastAPI, experiment: Experiment) -> None:
    kinds = {kind: Trajectories(experiment.folder / folder) for kind, folder in FOLDERS.items()}
    samples = Samples(experiment)

    def of(kind: str) -> Trajectories:
        if kind not in kinds:
            raise BadRequest(f"{kind!r} is not known, write {' or '.join(kinds)}")
        return kinds[kind]

    @app.get("/api/trajectories/{kind}")
    def find(
        kind: str,
        step: int | None = Query(None, ge=0),
        outcome: str = "",
        origin: str = "",
        guidance: str = "",
        text: str = "",
        environment: str = "",
        before: str = "",
        limit: Limit = 100,
    ) -> Response:
        wanted = Filter(step, outcome, origin, guidance, text.strip(), environment)
        found = of(kind).find(wanted, before=cursor(before), limit=limit)
        return Json(found | {"any": bool(of(kind).steps()), "environments": experiment.environments()})

    @app.get("/api/trajectories/{kind}/steps")
    def steps(kind: str) -> Response:
        return Json(of(kind).steps())

    @app.get("/api/trajectories/{kind}/{step}/{index}")
    def one(kind: str, step: int, index: int) -> Response:
        found = of(kind).one(step, index)
        rows = samples.rows(step, found["summary"]["id"]) if kind == "training" else []
        return Json(found | {"rows": rows, "samples_dumped": samples.exist()})


def _task_routes(app: FastAPI, tasks: Tasks) -> None:
    @app.get("/api/tasks")
    def overview() -> Response:
        return Json(tasks.overview())

    @app.get("/api/tasks/proposals")
    def proposals(
        journal: str, run: str, fate: str = "", text: str = "", offset: Number = 0, limit: Limit = 50
    ) -> Response:
        if fate and fate not in FATES:
            raise BadRequest(f"fate: {fate!r} is not known, write {', '.join(FATES)}")
        return Json(tasks.proposals(journal, run, fate=fate, text=text.strip(), offset=offset, limit=limit))

    @app.get("/api/tasks/exploration")
    def exploration(journal: str, run: str, index: Number) -> Response:
        return Json(tasks.exploration(journal, run, index))


def _round_routes(app: FastAPI, rounds: Rounds) -> None:
    @app.get("/api/rounds")
    def overview() -> Response:
        return Json(rounds.overview())

    @app.get("/api/rounds/{number}/records")
    def records(number: int, fate: str = "", reason: str = "", offset: Number = 0, limit: Limit = 50) -> Response:
        if fate not in ("", "kept", "dropped"):
            raise BadRequest(f"fate: {fate!r} is not known, write kept or dropped")
        return Json(rounds.records(number, fate=fate, reason=reason, offset=offset, limit=limit))


def _experience_routes(app: FastAPI, pool: ExperiencePool) -> None:
    @app.get("/api/experience")
    def read(
        workspace: str = "",
        text: str = "",
        by_meaning: bool = False,
        category: str = "",
        sort: str = "newest",
        offset: Number = 0,
        limit: Limit = 50,
    ) -> Response:
        return Json(
            pool.read(
                workspace=workspace,
                text=text.strip(),
                by_meaning=by_meaning,
                category=category,
                sort=sort,
                offset=offset,
                limit=limit,
            )
        )

    @app.patch("/api/experience/{workspace}/{identifier}")
    def edit(workspace: str, identifier: str, changes: Annotated[dict[str, Any], Body()]) -> Response:
        return Json(pool.edit(workspace, identifier, changes))

    @app.delete("/api/experience/{workspace}/{identifier}")
    def delete(workspace: str, identifier: str) -> Response:
        pool.delete(workspace, identifier)
        return Json({"deleted": identifier})


logger = logging.getLogger("agentevolver.launcher.view")

HOST = "127.0.0.1"
# What requests in flight have left once the server is told to stop.
STOP_S = 2


def view(folder: Path, host: str = HOST, port: int | None = None) -> None:
    """Serve the page of a run until SIGINT or SIGTERM.

    Args:
        folder: the run's.
        host: the address to bind; beyond loopback the page asks for a token.
        port: None takes the first free one from `LOGVIEW_PORT` on.

    Raises:
        UsageError: the folder is no run's.
        LaunchError: the port is taken.
    """
    try:
        experiment = Experiment(folder)
    except NotAnExperiment as error:
        raise UsageError(str(error)) from error
    chosen = take_port_from(LOGVIEW_PORT) if port is None else port
    if chosen is None or (port is not None and not port_is_free(port, host)):
        raise LaunchError(f"port {port or LOGVIEW_PORT} is taken; give another one with --port")
    try:
        access = page_access(host, secret(TOKEN_VARIABLE))
    except ValueError as error:
        raise LaunchError(str(error)) from error
    logger.info("watch %s at %s", experiment.name, address(access, chosen))
    app, limits = create_app(experiment, access), Limits(body_bytes=MAX_BODY_BYTES)
    asyncio.run(Server(server_config(app, limits, host=host, port=chosen, log_level="warning", stop_s=STOP_S)).serve())


def address(access: Access, port: int) -> str:
    """Return what to open in a browser."""
    shown = f"[{access.host}]" if ":" in access.host else access.host
    return f"http://{shown}:{port}/" + ("" if access.local else f"?token={quote(access.token, safe='')}")
