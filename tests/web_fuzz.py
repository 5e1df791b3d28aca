"""Requests drawn from the OpenAPI schema of each of the four servers, true ones and bent ones, with credentials and
without.

`Drawn` is a request; `Fuzzer` draws them, sends them to the ASGI application or over a socket, and holds what every
answer must keep to: no 5xx but 503 and 504, errors in the server's own JSON form, nothing done without the token.
Everything follows from the seed.
"""

from __future__ import annotations

import json
import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from tests.four_servers import TOKEN, Served

HOSTILE: tuple[Any, ...] = (
    *(
        "",
        " ",
        "\x00",
        "a\x00b",
        "\ud800",
        "\udfffx",
        "../x",
        "../../etc/passwd",
        "..\\x",
        "/etc/passwd",
        ".",
        "..",
        "a/b",
        "\u202e",
        "\ufeff",
    ),
    *(
        "x" * 300,
        "y" * 5000,
        "\r\nx: y",
        "%00",
        "%2e%2e%2f",
        "'; DROP TABLE records; --",
        "<script>",
        "<|im_end|>",
        "{}",
        "null",
        "NaN",
        "1:1",
    ),
    *(
        -1,
        0,
        1,
        2**31,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
        -(10**30),
        0.5,
        -0.0,
        1e308,
        1e-320,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [{}],
        {"": ""},
        {"a": {"b": [1, "\ud800"]}},
        ["\x00"] * 20,
        [1] * 2000,
        {"role": 1},
        {"role": "user", "content": None},
    ),
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "post", "")


@dataclass(frozen=True)
class Operation:
    """A route of a server: its schema, as OpenAPI has it."""

    server: str
    method: str
    path: str
    parameters: tuple[dict[str, Any], ...] = ()
    body: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.server} {self.method} {self.path}"


@dataclass(frozen=True)
class Drawn:
    """A request, and whether it carries the token."""

    operation: Operation
    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    authorised: bool


@dataclass(frozen=True)
class Answered:
    """An answer; status 0: the connection was closed without one."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Broken(AssertionError):
    """An answer that may not be."""


class Fuzzer:
    """Draws requests for one server and judges the answers; `counts` has them by operation and status."""

    def __init__(self, served: Served, real: dict[str, list[Any] | Callable[[random.Random], Any]], seed: int) -> None:
        """`real` holds values that mean something to the server: of fields and parameters by `path name` or `name`, of
        bodies by `path`."""
        self.served = served
        self.counts: Counter[tuple[str, int]] = Counter()
        self._rng = random.Random(f"{served.name}-{seed}")
        self._real = real
        self._schema = served.documented.openapi()
        self.operations = self._listed()

    def _listed(self) -> list[Operation]:
        found = [
            Operation(
                self.served.name,
                method.upper(),
                path,
                tuple(operation.get("parameters", ())),
                operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema"),
            )
            for path, operations in self._schema["paths"].items()
            for method, operation in operations.items()
        ]
        more = {
            "environment": ("/openapi.json", "/docs"),
            "experience": ("/openapi.json",),
            "page": ("/", "/app.js"),
            "teacher": ("/openapi.json",),
        }
        return found + [Operation(self.served.name, "GET", path) for path in more[self.served.name]]

    # -- drawing

    def draw(self) -> Drawn:
        """Return the next request."""
        rng = self._rng
        operation = rng.choice(self.operations)
        how = rng.choices(("true", "schema", "bent", "raw"), (45, 10, 30, 15))[0]
        credentials = rng.choices(("right", "none", "wrong"), (80, 10, 10) if how == "true" else (60, 20, 20))[0]
        method = operation.method if how != "raw" or rng.random() < 0.6 else rng.choice(_METHODS[:7])
        body = self._body(operation, how)
        headers = [(b"host", b"127.0.0.1")]
        if body or method not in ("GET", "HEAD"):
            headers += [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        if credentials != "none":
            headers.append(
                (
                    b"authorization",
                    b"Bearer " + (TOKEN.encode() if credentials == "right" else rng.randbytes(8).hex().encode()),
                )
            )
        if how == "raw":
            headers = self._bent_headers(headers)
        return Drawn(operation, method, self._target(operation, how), tuple(headers), body, credentials == "right")

    def _value(self, operation: Operation, name: str, schema: dict[str, Any], how: str) -> Any:
        rng = self._rng
        if how == "bent" and rng.random() < 0.4:
            return rng.choice(HOSTILE)
        if how != "schema" and rng.random() < 0.95:
            for key in (f"{operation.path} {name}", name):
                if key in self._real:
                    known = self._real[key]
                    return known(rng) if callable(known) else rng.choice(known)
        return self._from_schema(schema, how)

    def _from_schema(self, schema: dict[str, Any], how: str, depth: int = 0) -> Any:
        rng = self._rng
        if "$ref" in schema:
            return self._from_schema(
                self._schema["components"]["schemas"][schema["$ref"].rpartition("/")[2]], how, depth
            )
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._from_schema(rng.choice(schema[key]), how, depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object" and "properties" in schema:
            required = schema.get("required", ())
            wanted = [name for name in schema["properties"] if name in required or rng.random() < 0.6]
            return {name: self._from_schema(schema["properties"][name], how, depth + 1) for name in wanted}
        if kind == "object":
            return (
                {}
                if depth > 4
                else {self._text(): self._from_schema({}, how, depth + 1) for _ in range(rng.randrange(3))}
            )
        if kind == "array":
            least = schema.get("minItems", 0)
            items = schema.get("items", {})
            return [self._from_schema(items, how, depth + 1) for _ in range(least + rng.randrange(3) * (depth < 5))]
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", -(2**40)), schema.get("maximum", 2**40)
            number = rng.choice((low, high, min(high, max(low, 0)), min(high, max(low, rng.randrange(100)))))
            return number if kind == "integer" else number + rng.random()
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "null":
            return None
        if kind == "string":
            return self._text()
        return rng.choice((None, True, 3, 0.5, self._text())) if depth > 3 else rng.choice(HOSTILE)

    def _text(self) -> str:
        rng = self._rng
        alphabet = 'abc 012é\u6f22\U0001f600\n\t"\\<>{}[]:,./-_'
        return "".join(rng.choice(alphabet) for _ in range(rng.randrange(24)))

    def _body(self, operation: Operation, how: str) -> bytes:
        rng = self._rng
        if operation.method not in ("POST", "PATCH", "PUT"):
            return b"" if how != "raw" or rng.random() < 0.8 else b"{}"
        whole = self._real.get(operation.path)
        schema = operation.body or {"type": "object"}
        if whole is not None and how != "schema":
            value = whole(rng) if callable(whole) else rng.choice(whole)
        elif "properties" in (resolved := self._resolved(schema)):
            required = resolved.get("required", ())
            names = [
                name
                for name in resolved["properties"]
                if name in required or rng.random() < (0.3 if how == "true" else 0.6)
            ]
            value = {name: self._value(operation, name, resolved["properties"][name], how) for name in names}
        else:
            value = self._from_schema(schema, how)
        if how == "bent":
            value = self._bent(value)
        data = json.dumps(value).encode()
        if how == "raw":
            data = self._torn(data)
        return data

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        return self._schema["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def _bent(self, value: Any) -> Any:
        """Put something hostile somewhere into a value, take something away, or add something."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.8:
            key = rng.choice(list(value))
            action = rng.random()
            if action < 0.15:
                return {k: v for k, v in value.items() if k != key}
            if action < 0.25:
                return {**value, str(rng.choice(HOSTILE)): rng.choice(HOSTILE)}
            return {**value, key: self._bent(value[key])}
        if isinstance(value, list) and value and rng.random() < 0.8:
            place = rng.randrange(len(value))
            return [*value[:place], self._bent(value[place]), *value[place + 1 :]]
        return rng.choice(HOSTILE)

    def _torn(self, data: bytes) -> bytes:
        rng = self._rng
        place = rng.randrange(len(data) + 1)
        return rng.choice(
            (
                data[:place],
                data[:place] + rng.randbytes(rng.randrange(1, 8)) + data[place:],
                b"[" * 50_000,
                b'{"a":' * 2000 + b"1" + b"}" * 2000,
                b"",
                b"null",
                b"\xff\xfe\x00",
                b'"\\ud800"',
                b"1e999",
                b"x" * rng.randrange(1, 200_000),
            )
        )

    def _target(self, operation: Operation, how: str) -> str:
        rng = self._rng
        path, query = operation.path, []
        for parameter in operation.parameters:
            if parameter["in"] == "path" or parameter.get("required") or rng.random() < 0.4:
                value = self._value(operation, parameter["name"], parameter.get("schema", {}), how)
                text = quote(_as_text(value).encode("utf-8", "surrogatepass"), safe="")[:20_000]
                if parameter["in"] == "path":
                    path = path.replace("{" + parameter["name"] + "}", text or "%20")
                else:
                    query.append(f"{parameter['name']}={text}")
        target = path + ("?" + "&".join(query) if query else "")
        if how == "raw":
            additions = (
                "",
                "/",
                "//",
                "/..",
                "/%2e%2e/",
                "?",
                "?%00",
                "?a=%ff",
                "?token=x&token=",
                "#x",
                "%00",
                "%ff",
                ";x",
                "/../../x",
                "?" + "a&" * 5000,
            )
            target = rng.choice(("", "", "/", "/../", "//")) + target + rng.choice(additions)
        return target

    def _bent_headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        rng = self._rng
        ours = dict(headers)
        name, value = rng.choice(
            (
                (b"host", b"evil.example"),
                (b"host", b""),
                (b"origin", b"http://evil.example"),
                (b"origin", b"null"),
                (b"content-type", b"text/plain"),
                (b"content-type", b"application/json; charset=utf-16"),
                (b"content-length", b"-1"),
                (b"content-length", b"9" * 40),
                (b"transfer-encoding", b"chunked"),
                (b"cookie", b"view_token=" + rng.randbytes(9)),
                (b"cookie", b";=;a;" * 200),
                (b"idempotency-key", rng.randbytes(20)),
                (b"authorization", b"Basic " + rng.randbytes(6).hex().encode()),
                (b"range", b"bytes=9-1,0-,-5"),
                (b"if-none-match", rng.randbytes(9).hex().encode()),
                (b"if-modified-since", b"yesterday"),
                (b"accept-encoding", b"*;q=x"),
                (b"connection", b"upgrade"),
                (b"x-forwarded-host", b"evil.example"),
                (b"expect", b"100-continue"),
            )
        )
        return [(known, found) for known, found in ours.items() if known != name] + [(name, value)]

    # -- sending

    async def send(self, drawn: Drawn) -> Answered:
        """Send a request to the application itself, as uvicorn would hand it over."""
        path, _, query = drawn.target.partition("#")[0].partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 9),
            "root_path": "",
            "method": drawn.method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": list(drawn.headers),
            "state": {},
        }
        messages: deque[dict[str, Any]] = deque([{"type": "http.request", "body": drawn.body, "more_body": False}])
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.popleft() if messages else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.served.app(scope, receive, send)
        if not sent:
            return Answered(0, {}, b"")
        return Answered(
            sent[0]["status"], dict(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent[1:])
        )

    def send_bytes(self, drawn: Drawn, port: int) -> Answered:
        """Send a request over a socket; sometimes torn. If a server waits for the rest of it, there is no answer."""
        lines = [f"{drawn.method} {drawn.target or '/'} HTTP/1.1".encode("latin-1", "replace")]
        lines += [name + b": " + value for name, value in drawn.headers]
        data = b"\r\n".join([*lines, b"connection: close", b"", b""]) + drawn.body
        torn = self._rng.random() < 0.2
        if torn:
            place = self._rng.randrange(len(data))
            data = data[:place] + self._rng.randbytes(self._rng.randrange(4)) + data[place + self._rng.randrange(3) :]
        raw = b""
        lost = (ConnectionError, TimeoutError) if torn else (ConnectionError,)
        with socket.create_connection(("127.0.0.1", port), timeout=0.3 if torn else 20) as connection, suppress(*lost):
            connection.sendall(data)
            while part := connection.recv(65536):
                raw += part
        head, _, body = raw.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
        if not head:
            return Answered(0, {}, b"")
        status, *fields = head.split(b"\r\n")
        return Answered(
            int(status.split()[1]), {k.lower(): v for k, _, v in (field.partition(b": ") for field in fields)}, body
        )

    # -- judging

    def judge(self, drawn: Drawn, answered: Answered, *, torn: bool = False) -> None:
        """Count an answer; raises Broken for one that may not be. `torn`: the bytes may have been another request."""
        self.counts[drawn.operation.name, answered.status] += 1
        problem = self._problem(drawn, answered, torn)
        if problem:
            raise Broken(f"{problem}\n{drawn}\n{answered.status} {answered.headers} {answered.body[:500]!r}")

    def _problem(self, drawn: Drawn, answered: Answered, torn: bool) -> str:
        status = answered.status
        if status >= 500 and status not in (503, 504):
            return "a 5xx"
        if status == 0:
            return "" if torn else "no answer"
        if b"Traceback" in answered.body:
            return "a traceback"
        open_path = drawn.operation.path in ("/healthz", "/health") or (
            self.served.name == "page" and drawn.method in ("GET", "HEAD")
        )
        if not drawn.authorised and status < 300 and not open_path and not torn:
            return "served without the token"
        if status < 400 or (drawn.method == "HEAD" and not torn) or not answered.body:
            return ""
        if torn and status == 400 and answered.body == b"Invalid HTTP request received.":
            return ""  # uvicorn's own
        if answered.headers.get(b"content-type") != b"application/json":
            return "" if status == 503 and drawn.operation.path == "/healthz" else "an error that is not JSON"
        keys = {"environment": {"success", "detail", "code"}, "teacher": {"error"}}.get(self.served.name, {"detail"})
        return "" if keys <= set(json.loads(answered.body)) else "an error of another form"

    def served_times(self) -> dict[str, int]:
        """Return how often each operation was answered with 2xx."""
        return {
            o.name: sum(n for (name, status), n in self.counts.items() if name == o.name and 200 <= status < 300)
            for o in self.operations
        }


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
