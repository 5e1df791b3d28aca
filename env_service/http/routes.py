"""From a body's bytes to a reply's bytes, for every POST route.

The table `ROUTES` defines the fields and the reply of each route, for the HTTP layer and the OpenAPI schema.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from env_service.contract import checked_action
from env_service.errors import BadRequest, InvalidBody, ServiceError
from env_service.hosting.service import EnvService
from env_service.http import models
from env_service.http.models import ServiceRequest

logger = logging.getLogger(__name__)

MAX_MANY = 1024
_PREFIX, _SUFFIX = b'{"success":true,"data":', b"}"


class HttpReply(NamedTuple):
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class InvalidFields(InvalidBody):
    """Fields have wrong types; `errors` is FastAPI's list of them."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("the body does not match the schema")
        self.errors = errors


Operation = Callable[[EnvService, ServiceRequest, str | None], Awaitable[bytes]]


class Route(NamedTuple):
    operation: Operation
    required: tuple[str, ...]
    optional: tuple[str, ...]
    reply: type[BaseModel]
    summary: str


def failure(error: ServiceError) -> HttpReply:
    detail: Any = error.errors if isinstance(error, InvalidFields) else error.detail
    body: dict[str, Any] = {"success": False, "detail": detail, "code": error.code}
    if error.error_id is not None:
        body["error_id"] = error.error_id
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after_s is not None:
        headers = ((b"retry-after", b"%d" % max(1, round(error.retry_after_s))),)
    return HttpReply(error.status, orjson.dumps(body, default=str), headers)


def parse(body: bytes) -> ServiceRequest:
    """Return the request in a body; raise InvalidBody."""
    return _validated(_loaded(body), ())


async def answer(service: EnvService, path: str, body: bytes, create_key: str | None) -> HttpReply:
    """Run a route of `ROUTES` or `MANY` on a body; never raises."""
    try:
        if path in MANY:
            data = await _many(service, MANY[path], body)
        else:
            route = ROUTES[path]
            data = await _run(service, path, route, parse(body), create_key)
        return HttpReply(200, data)
    except ServiceError as error:
        return failure(error)
    except Exception:  # a bug of the service: the client gets an error id, and the log the traceback
        error_id = secrets.token_hex(6)
        logger.exception("route %s failed unexpectedly [%s]", path, error_id)
        return failure(ServiceError(f"the service failed; its log has the details under {error_id}", error_id=error_id))


async def _run(service: EnvService, path: str, route: Route, request: ServiceRequest, create_key: str | None) -> bytes:
    for field in route.required:
        if getattr(request, field) in (None, ""):
            raise BadRequest(f"{path} needs the field {field!r}")
    return await route.operation(service, request, create_key)


async def _many(service: EnvService, path: str, body: bytes) -> bytes:
    loaded = _loaded(body)
    items = loaded.get("requests") if isinstance(loaded, dict) else None
    if not isinstance(items, list) or len(items) > MAX_MANY:
        raise InvalidFields(
            [{"type": "list_type", "loc": ["body", "requests"], "msg": f"must be a list of at most {MAX_MANY} bodies"}]
        )
    requests = [_validated(item, ("requests", number)) for number, item in enumerate(items)]
    replies = await asyncio.gather(*(_one(service, path, request) for request in requests))
    return _PREFIX + b"[" + b",".join(replies) + b"]" + _SUFFIX


async def _one(service: EnvService, path: str, request: ServiceRequest) -> bytes:
    try:
        return await _run(service, path, ROUTES[path], request, None)
    except ServiceError as error:
        reply = failure(error)
        return orjson.dumps({"status": reply.status, **orjson.loads(reply.body)})


def _loaded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidFields(
            [{"type": "json_invalid", "loc": ["body", error.pos], "msg": f"JSON decode error: {error.msg}"}]
        ) from error


def _validated(value: Any, where: tuple[str | int, ...]) -> ServiceRequest:
    try:
        return ServiceRequest.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidFields([{**detail, "loc": ["body", *where, *detail["loc"]]} for detail in details]) from error


def _conversation(messages: dict[str, Any] | list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    # AgentEvolver's client sends an empty dict for "none".
    if not messages:
        return None
    return messages if isinstance(messages, list) else [messages]


def _wrap(data: bytes) -> bytes:
    return _PREFIX + data + _SUFFIX


async def _profile(service: EnvService, request: ServiceRequest, create_key: str | None) -> bytes:
    return _wrap(await service.get_env_profile(request.env_type, request.params or {}))


async def _create(service: EnvService, request: ServiceRequest, create_key: str | None) -> bytes:
    return _wrap(
        await service.create(
            request.env_type, request.task_id or "", request.instance_id, request.params or {}, create_key
        )
    )


async def _step(service: EnvService, request: ServiceRequest, create_key: str | None) -> bytes:
    try:
        action = checked_action(request.messages)
    except ValueError as error:
        raise BadRequest(f"/step cannot take these `messages`: {error}") from error
    return _wrap(await service.step(request.instance_id or "", action, request.params or {}, request.step_index))


async def _evaluate(service: EnvService, request: ServiceRequest, create_key: str | None) -> bytes:
    return _wrap(
        await service.evaluate(request.instance_id or "", _conversation(request.messages), request.params or {})
    )


async def _info(service: EnvService, request: ServiceRequest, create_key: str | None) -> bytes:
    return _wrap(
        await service.get_info(request.instance_id or "", _conversation(request.messages), request.params or {})
    )


async def _release(service: EnvService, request: ServiceRequest, create_key: str | None) -> bytes:
    released = await service.release(request.instance_id or "")
    return b'{"success":%s,"data":null}' % (b"true" if released else b"false")


ROUTES: dict[str, Route] = {
    "/get_env_profile": Route(
        _profile, (), ("env_type", "params"), models.ProfileReply, "Task ids of a split (params.split)."
    ),
    "/create": Route(
        _create, ("task_id",), ("env_type", "instance_id", "params"), models.CreateReply, "Open an instance of a task."
    ),
    "/step": Route(
        _step, ("instance_id", "messages"), ("params", "step_index"), models.StepReply, "Apply one assistant message."
    ),
    "/evaluate": Route(
        _evaluate, ("instance_id",), ("messages", "params"), models.ScoreReply, "Grade the episode in 0..1."
    ),
    "/get_info": Route(
        _info, ("instance_id",), ("messages", "params"), models.InfoReply, "Facts about the instance, such as tools."
    ),
    "/release": Route(_release, ("instance_id",), (), models.ReleaseReply, "Close the instance; idempotent."),
}
MANY = {"/step_many": "/step", "/create_many": "/create"}
