"""HTTP server of the service: the ASGI application behind its shield, and its life from bound port to last process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from typing import Annotated, Any

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from agentevolver.utils.health import ENVIRONMENTS, health_facts
from agentevolver.utils.net import address_to_bind
from agentevolver.utils.secrets import forget, secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import server_config
from agentevolver.utils.web.shield import Shield, answer_errors, send_json
from env_service.hosting.cluster import HostCluster, HostFailed
from env_service.hosting.service import EnvService
from env_service.http.models import ErrorModel, InstancesReply, ManyReply, request_model
from env_service.http.routes import MANY, MAX_MANY, ROUTES, answer
from env_service.settings import TOKEN_VARIABLE, ServiceSettings

ERROR_STATUSES = {
    400: "The caller asked for something wrong.",
    401: "The bearer token is missing or wrong.",
    403: "The request comes from a web page of another origin.",
    409: "The instance exists, or the step number is out of order.",
    411: "The request does not say the length of its body.",
    413: "The body is too large.",
    415: "The body is not announced as JSON.",
    421: "The request was sent to another name than this machine's own, and the service is bound to loopback.",
    422: "The body does not match the schema.",
    500: "The environment failed (`error_id` leads to the log) or its process is gone.",
    503: "Full, starting or stopping; see Retry-After.",
    504: "The environment took too long; the instance is given up.",
}
_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    411: "length_required",
    413: "body_too_large",
    415: "not_json",
    421: "misdirected",
    422: "invalid_body",
    500: "internal",
}


def error_body(status: int, detail: str) -> dict[str, Any]:
    """Return the body of a refusal outside the routes, in the form of `ErrorModel`."""
    return {"success": False, "detail": detail, "code": _CODES.get(status, "bad_request")}


class Gate:
    """ASGI application of one service, without its shield."""

    def __init__(self, service: EnvService) -> None:
        self._service = service
        self._app: ASGIApp = documented_app(service)
        self._paths = frozenset((*ROUTES, *MANY))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        # FastAPI serves the schema, the listings, 404 and 405. The POST routes bypass it: a rollout makes thousands of
        # such calls a second.
        if path not in self._paths or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")
        key = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"idempotency-key"), None)
        reply = await answer(self._service, path, body, key)
        self.count(path, reply.status)
        await send_json(send, reply.status, reply.body, reply.headers)

    def count(self, path: str, status: int) -> None:
        self._service.metrics.requests.labels(path if path in self._paths else "other", str(status)).inc()


def shielded(service: EnvService, settings: ServiceSettings) -> Shield:
    """Return a service's application behind its shield; raises ValueError for settings that would let everybody in."""
    gate = Gate(service)
    access = Access(settings.host, settings.token or "", TOKEN_VARIABLE)
    return Shield(gate, access, settings.max_body_bytes, error_body, check_json=False, on_refusal=gate.count)


def documented_app(service: EnvService) -> FastAPI:
    """Return the FastAPI application: schemas of all routes, /healthz, /metrics, /instances."""
    app = FastAPI(
        title="Environment service", description="Gym-style environments for LLM agents over HTTP.", version="1"
    )
    answer_errors(app, error_body, invalid=422)
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorModel, "description": text} for status, text in ERROR_STATUSES.items()
    }

    for path, route in ROUTES.items():
        body = request_model(f"{path.strip('/').title().replace('_', '')}Request", route.required, route.optional)
        _add_post(app, service, path, body, route.reply, route.summary, errors)
    for path, single in MANY.items():
        route = ROUTES[single]
        # The schema requires no field: an item that lacks one gets a 400 as its own reply, and the others are served.
        item = request_model(f"{path.strip('/').title().replace('_', '')}Item", (), (*route.required, *route.optional))
        body = _many_model(path, item)
        _add_post(
            app, service, path, body, ManyReply, f"Many {single} requests at a time, answered in their order.", errors
        )

    @app.get(
        "/healthz",
        response_class=Response,
        summary="OK if instances can be created; as JSON, also the server's identity.",
    )
    async def healthz(request: Request) -> Response:
        reason = service.not_ready()
        status, headers = (200, {"vary": "accept"}) if reason is None else (503, {"vary": "accept", "retry-after": "1"})
        if "application/json" in request.headers.get("accept", "").lower():
            facts = health_facts(ENVIRONMENTS, env_types=sorted(service.settings.environments), status=reason or "ok")
            return Response(orjson.dumps(facts), status, headers, media_type="application/json")
        return Response(reason or "OK", status, headers, media_type="text/plain")

    @app.get("/metrics", response_class=Response, summary="Prometheus metrics.")
    async def metrics() -> Response:
        service.observe()
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/instances", response_model=InstancesReply, summary="The open instances.")
    async def instances() -> Response:
        data = {"success": True, "data": [instance.facts() for instance in service.instances.values()]}
        return Response(orjson.dumps(data), media_type="application/json")

    return app


def _many_model(path: str, item: type[BaseModel]) -> type[BaseModel]:
    from pydantic import create_model

    items = Annotated[list[item], Field(max_length=MAX_MANY)]  # type: ignore[valid-type]
    return create_model(f"{path.strip('/').title().replace('_', '')}Request", requests=(items, ...))


def self_contained_schema(model: type[BaseModel]) -> dict[str, Any]:
    # A schema inside a route cannot have `$defs`: replace every `$ref` by its definition.
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(definitions[part["$ref"].rpartition("/")[2]])
        return {key: inlined(value) for key, value in part.items()}

    return {key: inlined(value) for key, value in schema.items()}


def _add_post(
    app: FastAPI,
    service: EnvService,
    path: str,
    body: type[BaseModel],
    reply: type[BaseModel],
    summary: str,
    errors: dict[int | str, dict[str, Any]],
) -> None:
    """Register a POST route for its schema; `routes.answer` does the work."""

    async def endpoint(request: Request) -> Response:
        result = await answer(service, path, await request.body(), request.headers.get("idempotency-key"))
        headers = {name.decode(): value.decode() for name, value in result.headers}
        return Response(result.body, result.status, headers, media_type="application/json")

    content = {"application/json": {"schema": self_contained_schema(body)}}
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        summary=summary,
        name=path.strip("/"),
        response_model=reply,
        responses=errors,
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )


logger = logging.getLogger(__name__)

GRACE_S = 5
MANY_FILES = 4096


class StartError(Exception):
    """The service cannot start; the message is one line: why, and what to do."""


def take_token(host: str) -> str | None:
    """Return the token and remove it from the environment; raise StartError if one is needed."""
    token = secret(TOKEN_VARIABLE)
    # Environments must not see it.
    forget([TOKEN_VARIABLE])
    try:
        Access(host, token, TOKEN_VARIABLE)
    except ValueError as error:
        raise StartError(f"--host {error}") from error
    return token or None


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise StartError if the port is taken or the host is not this machine's."""
    sock: socket.socket | None = None
    try:
        family, address = address_to_bind(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # inherited by accepted sockets; without it a reply waits 40 ms for an ACK
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
    """Run until a signal; raise StartError if the service cannot start."""
    # Before Ray starts, so that an occupied port is an error at once.
    sock = bind(settings.host, settings.port)
    with contextlib.closing(sock):
        import uvloop

        _allow_many_files()
        uvloop.run(_run(settings, sock))


def _allow_many_files() -> None:
    # Every instance and every client costs an open file.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < MANY_FILES:
        logger.warning(
            "only %d files can be open (it was %d); many clients or isolated instances need more (ulimit -n)",
            hard,
            soft,
        )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(settings: ServiceSettings, sock: socket.socket) -> None:
    stop = asyncio.Event()
    _stop_on_signals(stop)
    cluster = HostCluster(settings.ray_address)
    service = EnvService(settings, cluster)
    config = server_config(
        shielded(service, settings),
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
            _stop_on_signals(stop)  # Ray has replaced the handlers by its own
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


async def _start(cluster: HostCluster, service: EnvService) -> None:
    try:
        await cluster.start()
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise StartError(f"Ray cannot be started or joined: {str(error).splitlines()[0]}") from error
    try:
        await service.start()
    except HostFailed as error:
        raise StartError(f"an environment cannot be hosted: {error}") from error


async def _shut_down(
    cluster: HostCluster,
    service: EnvService,
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
