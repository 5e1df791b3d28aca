"""Shield of an HTTP application: refuses requests before the application sees them, and forms errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentevolver.utils.web.access import Access, AccessRefused

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]
ErrorBody = Callable[[int, str], dict[str, Any]]
# A duplicate of these is refused: a proxy in front may have read the other one.
_SINGLE = frozenset({b"host", b"origin", b"authorization", b"content-length", b"content-type", b"transfer-encoding"})
# Limits for reading the body of a refused request: closing a connection with unread data may lose the answer.
_DRAINED_BYTES, _DRAINED_S = 64 * 1024, 1.0


def plain_error(status: int, detail: str) -> dict[str, Any]:
    return {"detail": detail}


class Shield:
    """ASGI middleware of one server. The application gets the body in one piece.

    Args:
        error_body: makes the JSON of an error from status and detail.
        check_json: refuse bodies that cannot be written as JSON again (lone surrogates, NaN). False if the application
            parses with orjson, which checks that.
        headers: header fields of every answer.
        on_refusal: called with path and status.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        body_bytes: int,
        error_body: ErrorBody = plain_error,
        *,
        check_json: bool = True,
        headers: Headers = (),
        on_refusal: Callable[[str, int], None] = lambda path, status: None,
    ) -> None:
        self._app = app
        self._access = access
        self._body_bytes = body_bytes
        self._error_body = error_body
        self._check_json = check_json
        self._headers = tuple(headers)
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["path"].startswith("//"):  # AgentEvolver's client joins a base with a trailing slash
            scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
        headers = dict(scope["headers"])
        length = _announced(headers)
        try:
            self._check(scope, headers, length)
        except AccessRefused as refused:
            if length and length <= _DRAINED_BYTES:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_DRAINED_S):
                        await _read(receive)
            await self._refuse(scope, send, refused)
            return
        body = await _read(receive) if length else b""
        if body is None:
            return
        if body and self._check_json:
            try:
                orjson.loads(body)
            except orjson.JSONDecodeError as error:
                await self._refuse(scope, send, AccessRefused(400, f"the body is not JSON: {error}"))
                return
        await self._serve(scope, body, receive, send)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes], length: int | None) -> None:
        # In this order: names, size of the body, token, form of the request.
        names = [name for name, _ in scope["headers"]]
        for name in _SINGLE:
            if names.count(name) > 1:
                raise AccessRefused(400, f"the header {name.decode('latin-1')} is there twice")
        self._access.check_names(headers)
        if length is None:
            raise AccessRefused(411, "the request must say the length of its body in Content-Length")
        if length > self._body_bytes:
            raise AccessRefused(413, f"the body must not exceed {self._body_bytes} bytes, and this one has {length}")
        path, query = scope["path"], scope["query_string"]
        if path != "/" and headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            raise AccessRefused(403, "this request comes from a web page of another origin")
        self._access.check_token(scope["method"], path, query, headers)
        if not path.isprintable() or b"%00" in query:
            raise AccessRefused(400, "the path or the query holds a character that cannot be printed")
        if length:
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":  # anything else could come from a form on a web page
                raise AccessRefused(
                    415, f"send the body as application/json, not as {kind.decode('latin-1') or 'nothing'}"
                )

    async def _refuse(self, scope: Scope, send: Send, refused: AccessRefused) -> None:
        self._on_refusal(scope["path"], refused.status)
        closing = (*refused.headers, *self._headers, (b"connection", b"close"))
        await send_json(send, refused.status, self._error_body(refused.status, refused.detail), closing)

    async def _serve(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        given = started = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def adding(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        try:
            await self._app(scope, again, adding)
        # The client gets an id, and the log the traceback under that id.
        except Exception:
            error_id = secrets.token_hex(6)
            logger.exception("%s %s failed unexpectedly [%s]", scope["method"], scope["path"], error_id)
            if started:
                raise
            detail = f"the service failed; its log has the details under {error_id}"
            await send_json(send, 500, self._error_body(500, detail), self._headers)


async def send_json(send: Send, status: int, content: Any, headers: Headers = ()) -> None:
    body = content if isinstance(content, bytes) else orjson.dumps(content, default=str)
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})


def _announced(headers: Mapping[bytes, bytes]) -> int | None:
    given = headers.get(b"content-length", b"0")
    # `int` needs seconds for many thousands of digits.
    return int(given) if b"transfer-encoding" not in headers and given.isdigit() and len(given) <= 18 else None


async def _read(receive: Receive) -> bytes | None:
    """Return the whole body, or None if the client disconnected."""
    # No bound here: uvicorn passes no more bytes than the announced length, which is checked.
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def answer_errors(app: FastAPI, error_body: ErrorBody = plain_error, *, invalid: int = 400) -> None:
    """Let FastAPI's own errors (404, 405, an invalid body) be one line of JSON."""

    def answer(status: int, detail: str, headers: Any = None) -> JSONResponse:
        return JSONResponse(error_body(status, detail), status_code=status, headers=headers)

    async def known(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return answer(error.status_code, error.detail, error.headers)

    async def unfit(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place, text = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
        return answer(invalid, f"{place}: {text}")

    app.add_exception_handler(HTTPException, known)
    app.add_exception_handler(RequestValidationError, unfit)
