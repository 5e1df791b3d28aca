"""The HTTP application: access, limits, routes, OpenAPI.

`Gate` is a bare ASGI layer in front of FastAPI. It checks the bearer token (on everything but /healthz), bounds and reads bodies, and
answers the POST routes itself, because a rollout makes thousands of such calls a second; FastAPI serves the schema, the listings and
its usual 404 and 405. Nothing that an environment raised reaches a client as a traceback.
"""

from __future__ import annotations

import hmac
import re
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from env_service.errors import BodyTooLarge, Forbidden, NotJson, ServiceError, Unauthorized
from env_service.models import ErrorModel, InstancesReply, ManyReply, request_model
from env_service.routes import MANY, MAX_MANY, ROUTES, HttpReply, answer, failure
from env_service.service import Service

ERROR_STATUSES = {
    400: "The caller asked for something wrong.",
    401: "The bearer token is missing or wrong.",
    403: "The request was sent to another name than localhost, and the service has no token.",
    409: "The instance exists, or the step number is out of order.",
    413: "The body is too large.",
    415: "The body is not announced as JSON.",
    422: "The body does not match the schema.",
    500: "The environment failed (`error_id` leads to the log) or its process is gone.",
    503: "Full, starting or stopping; see Retry-After.",
    504: "The environment took too long; the instance is given up.",
}


LOCAL_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_PORT = re.compile(rb":\d+\Z")


class Disconnected(Exception):
    """The client went away before its body was complete."""


class Gate:
    """ASGI application of one service."""

    def __init__(self, service: Service, token: str | None, max_body_bytes: int) -> None:
        self._service = service
        self._token = token.encode() if token else None
        self._max_body_bytes = max_body_bytes
        self._app: ASGIApp = documented_app(service)
        self._paths = frozenset((*ROUTES, *MANY))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path.startswith("//"):  # AgentEvolver's client joins a base with a trailing slash
            path = "/" + path.lstrip("/")
            scope = {**scope, "path": path}
        try:
            headers = {name: value for name, value in scope["headers"]}
            if path != "/healthz":
                self._check_access(headers)
            if path not in self._paths or scope["method"] != "POST":
                await self._app(scope, receive, send)
                return
            body = await self._read(headers, receive)
            key = headers.get(b"idempotency-key")
            reply = await answer(self._service, path, body, key.decode("latin-1") if key else None)
        except Disconnected:
            return
        except ServiceError as error:
            reply = failure(error)
            if isinstance(error, BodyTooLarge):  # the rest of the body is not read, so the connection cannot be used again
                reply = reply._replace(headers=((b"connection", b"close"),))
        self._service.metrics.requests.labels(path if path in self._paths else "other", str(reply.status)).inc()
        await _send(send, reply)

    def _check_access(self, headers: dict[bytes, bytes]) -> None:
        if self._token is None:
            host = _PORT.sub(b"", headers.get(b"host", b"localhost"))
            if host.lower() not in LOCAL_HOSTS:  # a web page may have made its own name point at this machine
                raise Forbidden("without a token this service answers only as localhost or 127.0.0.1")
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token or b""):
            raise Unauthorized("send the service's token: Authorization: Bearer <the value of ENV_SERVICE_TOKEN>")

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":  # anything else could come from a form on a web page
            raise NotJson(f"send the body as application/json, not as {kind.decode('latin-1') or 'nothing'}")
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_body_bytes:
            raise BodyTooLarge(f"the body has {int(announced)} bytes; the limit is {self._max_body_bytes} (--max-body-bytes)")
        body: bytes = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise BodyTooLarge(f"the body has more than {self._max_body_bytes} bytes, the limit (--max-body-bytes)")
            if not message.get("more_body", False):
                return body


async def _send(send: Send, reply: HttpReply) -> None:
    length = b"%d" % len(reply.body)
    headers = [(b"content-type", b"application/json"), (b"content-length", length), *reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def documented_app(service: Service) -> FastAPI:
    """Return the FastAPI application: schemas of all routes, /healthz, /metrics, /instances."""
    app = FastAPI(title="Environment service", description="Gym-style environments for LLM agents over HTTP.", version="1")
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorModel, "description": text} for status, text in ERROR_STATUSES.items()
    }

    for path, route in ROUTES.items():
        body = request_model(f"{path.strip('/').title().replace('_', '')}Request", route.required, route.optional)
        _add_post(app, service, path, body, route.reply, route.summary, errors)
    for path, single in MANY.items():
        route = ROUTES[single]
        # A field that an item lacks is a 400 in its own reply and not a fault of the whole body, so the schema requires none.
        item = request_model(f"{path.strip('/').title().replace('_', '')}Item", (), (*route.required, *route.optional))
        body = _many_model(path, item)
        _add_post(app, service, path, body, ManyReply, f"Many {single} requests at a time, answered in their order.", errors)

    @app.get("/healthz", response_class=Response, summary="OK when instances can be created.")
    async def healthz() -> Response:
        reason = service.not_ready()
        if reason is None:
            return Response("OK", media_type="text/plain")
        return Response(reason, 503, {"retry-after": "1"}, media_type="text/plain")

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
    """Return a model's JSON schema with every `$ref` replaced by what it names, as a schema inside a route must be."""
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
    service: Service,
    path: str,
    body: type[BaseModel],
    reply: type[BaseModel],
    summary: str,
    errors: dict[int | str, dict[str, Any]],
) -> None:
    """Register a POST route whose schema is true and whose work is done by `routes.answer`."""

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
