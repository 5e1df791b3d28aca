"""The gateway's HTTP server: in a rollout worker's event loop, on loopback, one address for each rollout.

The unguessable id in the address is the credential; on other paths `Authorization: Bearer ID` or `x-api-key: ID`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from agentevolver.rollout.gateway import chat, messages, responses
from agentevolver.rollout.gateway.request import RequestRefused, body_of, json_of
from agentevolver.rollout.gateway.rollout import GatewayRollout
from agentevolver.utils.net import LOOPBACK
from agentevolver.utils.web.access import Access, AccessRefused

logger = logging.getLogger(__name__)

# Handler of a rollout's own route: JSON in (None without a body), JSON or a finished response out. May raise
# RequestRefused.
Route = Callable[[Any], Awaitable[Any]]
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of requests: bytes and seconds of a body, seconds until the head, bytes of a header line.

    `closed_s` is how long a closed rollout is remembered.
    """

    body_bytes: int = 8 * 1024 * 1024
    body_s: float = 30.0
    head_s: float = 75.0
    line_bytes: int = 8190
    closed_s: float = 600.0


@dataclass(frozen=True, slots=True)
class GatewayEndpoint:
    """Address of the policy for an agent: `base_url` for OpenAI's clients, `root_url` for Anthropic's.

    Any `api_key` and any model name work; the address is the credential.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str = "policy"

    @property
    def root_url(self) -> str:
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class _Open:
    rollout: GatewayRollout
    routes: Mapping[str, Route]


class GatewayServer:
    """Serves rollouts to their agents, for one event loop."""

    def __init__(
        self, host: str = LOOPBACK, port: int = 0, model: str = "policy", limits: ServerLimits | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._model = model
        self._limits = limits or ServerLimits()
        self._access = Access(host)
        self._open: dict[str, _Open] = {}
        self._closed: dict[str, float] = {}
        self._runner: web.ServerRunner | None = None

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        limits = self._limits
        server = _Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            # No decompression: a small body could become a huge one.
            auto_decompress=False,
            keepalive_timeout=limits.head_s,
            lingering_time=1.0,
            max_line_size=limits.line_bytes,
            max_field_size=limits.line_bytes,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for key in list(self._open):
            self._close(key, "the gateway stops")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def open(self, rollout: GatewayRollout, routes: Mapping[str, Route] | None = None) -> GatewayEndpoint:
        """Serve a rollout, with further `routes` (`"POST result"` is `POST /r/ID/result`), and return its endpoint."""
        if self._runner is None:
            raise RuntimeError("start the gateway before a rollout is opened")
        key = secrets.token_urlsafe(24)
        self._open[key] = _Open(rollout, routes or {})
        return GatewayEndpoint(f"http://{self._host}:{self._port}/r/{key}/v1", key, self._model)

    def close(self, endpoint: GatewayEndpoint, reason: str = "its agent is done") -> None:
        """End a rollout. Waiting calls are refused with 409; later ones too, and after a while with 404."""
        self._close(endpoint.api_key, reason)

    def _close(self, key: str, reason: str) -> None:
        opened = self._open.pop(key, None)
        if opened is None:
            return
        opened.rollout.close(reason)
        now = time.monotonic()
        self._closed[key] = now
        for old in [old for old, since in self._closed.items() if now - since > self._limits.closed_s]:
            del self._closed[old]

    # ---- requests ----

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        anthropic = False
        try:
            self._check_names(request)
            key, path = _parted(request)
            anthropic = path.startswith("v1/messages")
            return await self._answer(request.method, path, self._found(key), request)
        except RequestRefused as refusal:
            return _refusal(refusal, anthropic=anthropic)
        except Exception:
            error_id = secrets.token_hex(6)
            logger.exception("the gateway failed unexpectedly [%s]", error_id)
            text = f"the gateway failed; the log has the details under {error_id}"
            return _refusal(RequestRefused(500, text, "internal"), anthropic=anthropic)

    def _check_names(self, request: web.BaseRequest) -> None:
        names = {name: request.headers[name].encode() for name in ("Host", "Origin") if name in request.headers}
        try:
            self._access.check_names({name.lower().encode(): value for name, value in names.items()})
        except AccessRefused as refused:
            raise RequestRefused(refused.status, refused.detail, "wrong_name") from refused

    def _found(self, key: str) -> _Open:
        if (opened := self._open.get(key)) is not None:
            return opened
        since = self._closed.get(key)
        if since is not None and time.monotonic() - since <= self._limits.closed_s:
            raise RequestRefused(409, "this rollout has ended", "rollout_ended")
        raise RequestRefused(404, "no such rollout: take base_url and api_key of this episode's endpoint", "not_found")

    async def _answer(self, method: str, path: str, opened: _Open, request: web.BaseRequest) -> web.Response:
        if (api := _APIS.get(f"{method} {path}")) is not None:
            return await api(opened.rollout, await self._body(request), self._model)
        if method == "GET" and (path == "v1/models" or path.startswith("v1/models/")):
            model = {"id": self._model, "object": "model", "created": 0, "owned_by": "agentevolver"}
            return _json({"object": "list", "data": [model]} if path == "v1/models" else model)
        if (route := opened.routes.get(f"{method} {path}")) is not None:
            answer = await route(json_of(await self._body(request)))
            return answer if isinstance(answer, web.Response) else _json(answer)
        known = [one.partition(" ")[2] for one in (*_APIS, *opened.routes)]
        if path in known:
            raise RequestRefused(405, f"{path} does not answer {method}", "wrong_method")
        raise RequestRefused(
            404, f"no such path: {path[:80]!r}; there are {', '.join(sorted(set(known)))}", "not_found"
        )

    async def _body(self, request: web.BaseRequest) -> bytes:
        announced, most = request.content_length, self._limits.body_bytes
        if announced is not None and announced > most:
            raise RequestRefused(
                413, f"the body must not exceed {most} bytes, and this one has {announced}", "too_large"
            )
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > most:
                        raise RequestRefused(413, f"the body must not exceed {most} bytes", "too_large")
        except TimeoutError as error:
            raise RequestRefused(
                408, f"the body did not arrive within {self._limits.body_s:.0f} s", "too_slow"
            ) from error
        except web.RequestPayloadError as error:
            raise RequestRefused(400, f"the body cannot be read: {error}") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Connection(RequestHandler):
    """Answers unreadable HTTP in JSON."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        refusal = RequestRefused(status, (message or HTTPStatus(status).phrase).splitlines()[0], "invalid_http")
        response = _refusal(refusal, anthropic=False)
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


def _parted(request: web.BaseRequest) -> tuple[str, str]:
    path = request.path.lstrip("/")
    if path.startswith("r/"):
        _, key, path = (*path.split("/", 2), "")[:3]
        return key, path
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = request.headers.get("x-api-key", "")
    if not key:
        raise RequestRefused(401, "send the episode's key: Authorization: Bearer KEY, or x-api-key: KEY", "no_key")
    return key.strip(), path


async def _chat(rollout: GatewayRollout, body: bytes, model: str) -> web.Response:
    request = chat.read(body_of(body))
    completion = await rollout.complete(request)
    reply_id, name = uuid4().hex, request.model or model
    if not request.stream:
        return _json(chat.reply(completion, reply_id, name))
    chunks = chat.events(completion, reply_id, name, with_usage=request.with_usage)
    return _events([*(b"data: " + orjson.dumps(chunk) for chunk in chunks), b"data: [DONE]"])


async def _responses(rollout: GatewayRollout, given: bytes, model: str) -> web.Response:
    body = body_of(given)
    request = responses.read(body, rollout.remembered)
    completion = await rollout.complete(request)
    reply_id, name = uuid4().hex, request.model or model
    rollout.remember(responses.response_id(reply_id), responses.kept(request, body, completion))
    if not request.stream:
        return _json(responses.reply(completion, reply_id, name, body))
    return _events(_named(responses.events(completion, reply_id, name, body)))


async def _messages(rollout: GatewayRollout, body: bytes, model: str) -> web.Response:
    request = messages.read(body_of(body))
    completion = await rollout.complete(request)
    reply_id, name, apart = uuid4().hex, request.model or model, request.thoughts_apart
    if not request.stream:
        return _json(messages.reply(completion, reply_id, name, thoughts_apart=apart))
    return _events(_named(messages.events(completion, reply_id, name, thoughts_apart=apart)))


async def _count_tokens(rollout: GatewayRollout, body: bytes, model: str) -> web.Response:
    return _json({"input_tokens": rollout.count(messages.read(body_of(body)))})


def _named(events: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[bytes]:
    for name, event in events:
        yield b"event: %s\ndata: %s" % (name.encode(), orjson.dumps(event))


_Api = Callable[[GatewayRollout, bytes, str], Awaitable[web.Response]]
_APIS: dict[str, _Api] = {
    "POST v1/chat/completions": _chat,
    "POST v1/responses": _responses,
    "POST v1/messages": _messages,
    "POST v1/messages/count_tokens": _count_tokens,
}


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type=_JSON, headers=headers)


def _events(events: Iterable[bytes]) -> web.Response:
    # All events at once: the reply is complete when the first is sent.
    body = b"".join([event + b"\n\n" for event in events])
    return web.Response(body=body, content_type="text/event-stream", headers={"Cache-Control": "no-cache"})


_OPENAI_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "server_error"}
_ANTHROPIC_TYPES = {
    **{401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"},
    **{429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"},
}


def _refusal(refusal: RequestRefused, *, anthropic: bool) -> web.Response:
    status = refusal.status
    if anthropic:
        error = {"type": _ANTHROPIC_TYPES.get(status, "invalid_request_error"), "message": refusal.text}
        content: dict[str, Any] = {"type": "error", "error": error}
    else:
        kind = _OPENAI_TYPES.get(status, "invalid_request_error")
        content = {"error": {"message": refusal.text, "type": kind, "param": refusal.param, "code": refusal.code}}
    # The SDKs of OpenAI and Anthropic read both headers and retry only if that may help.
    retry = refusal.retry_s
    headers = {"x-should-retry": "false" if retry is None else "true"}
    if retry is not None:
        headers["Retry-After"] = f"{retry:.0f}"
    response = _json(content, status, headers)
    if status in (408, 413):
        response.force_close()
    return response
