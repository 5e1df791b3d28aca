"""Shield of an HTTP application: what is refused before the application sees it, and errors as JSON.

In this order: names (`Host`, `Origin`), the size of the body as announced, the token, the rest of the request's form. A
refusal reads nothing but a small body that is already on its way, and closes the connection. What passes has its body
read whole.
"""

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

from agentevolver.utils.web.access import Access, Refused
from agentevolver.utils.web.server import ErrorBody, plain_error

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]
# Of these a second one is refused, as whoever stands before the server may have read the other.
_SINGLE = frozenset({b"host", b"origin", b"authorization", b"content-length", b"content-type", b"transfer-encoding"})
# A refusal reads a body of so many bytes, for so long: a connection that is closed over unread data may lose the
# answer.
_DRAINED_BYTES, _DRAINED_S = 64 * 1024, 1.0


class Shield:
    """ASGI middleware of one server.

    Args:
        app: what is shielded.
        access: who may ask.
        body_bytes: size of the largest body.
        error_body: makes the JSON of an error from status and detail.
        check_json: whether bodies are checked to be JSON that can be written again (no lone surrogates, no NaN); an
            application that reads them with orjson does so itself.
        headers: header fields of every answer.
        on_refusal: is told path and status of what was refused.
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
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["path"].startswith("//"):  # AgentEvolver's client joins a base with a trailing slash
            scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
        headers: dict[bytes, bytes] = {}
        try:
            self._check(scope, headers)
        except Refused as refused:
            await _drain(headers, receive)
            await self._refuse(scope, send, refused)
            return
        body = await _read(receive) if headers.get(b"content-length", b"0") != b"0" else b""
        if body is None:
            return
        if body and self._check_json:
            try:
                orjson.loads(body)
            except orjson.JSONDecodeError as error:
                await self._refuse(scope, send, Refused(400, f"the body is not JSON: {error}"))
                return
        await self._serve(scope, body, receive, send)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise Refused for a head that is not to be served; fill in the headers."""
        for name, value in scope["headers"]:
            if name in headers and name in _SINGLE:
                raise Refused(400, f"the header {name.decode('latin-1')} is there twice")
            headers[name] = value
        self._access.check_names(headers)
        announced = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not announced.isdigit():
            raise Refused(411, "the request must say the length of its body in Content-Length")
        if len(announced) > 18 or int(announced) > self._body_bytes:
            raise Refused(
                413, f"the body must not exceed {self._body_bytes} bytes, and this one has {announced[:30].decode()}"
            )
        path, query = scope["path"], scope["query_string"]
        self._access.check_token(scope["method"], path, query, headers)
        if not path.isprintable() or b"%00" in query:
            raise Refused(400, "the path or the query holds a character that cannot be printed")
        if int(announced):
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":  # anything else could come from a form on a web page
                raise Refused(415, f"send the body as application/json, not as {kind.decode('latin-1') or 'nothing'}")

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> None:
        self._on_refusal(scope["path"], refused.status)
        closing = (*refused.headers, *self._headers, (b"connection", b"close"))
        await send_json(send, refused.status, self._error_body(refused.status, refused.detail), closing)

    async def _serve(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Let the application answer; what it raises is a 500 that names the entry in the log."""
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
        except Exception:
            error_id = secrets.token_hex(6)
            logger.exception("%s %s failed unexpectedly [%s]", scope["method"], scope["path"], error_id)
            if started:
                raise
            detail = f"the service failed; its log has the details under {error_id}"
            await send_json(send, 500, self._error_body(500, detail), self._headers)


async def send_json(send: Send, status: int, content: Any, headers: Headers = ()) -> None:
    """Send a whole JSON answer."""
    body = content if isinstance(content, bytes) else orjson.dumps(content, default=str)
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})


async def _read(receive: Receive) -> bytes | None:
    """Return the whole body, None if the client went away before its end. Its announced size was checked; uvicorn lets
    no more pass."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _drain(headers: Mapping[bytes, bytes], receive: Receive) -> None:
    """Read what little body a refused request has."""
    announced = headers.get(b"content-length", b"0")
    if (
        b"transfer-encoding" in headers
        or not announced.isdigit()
        or len(announced) > 18
        or not 0 < int(announced) <= _DRAINED_BYTES
    ):
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAINED_S):
            await _read(receive)


def answer_errors(app: FastAPI, error_body: ErrorBody = plain_error, *, invalid: int = 400) -> None:
    """Let a FastAPI application answer its own errors (404, 405, a body or parameter that does not fit)
    as JSON in one line."""

    def answer(status: int, detail: str, headers: Any = None) -> JSONResponse:
        return JSONResponse(error_body(status, detail), status_code=status, headers=headers)

    async def known(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return answer(error.status_code, error.detail, error.headers)

    async def unfit(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return answer(
            invalid, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].removeprefix('Value error, ')}"
        )

    app.add_exception_handler(HTTPException, known)
    app.add_exception_handler(RequestValidationError, unfit)
