"""The servers over real sockets, attacked without a token: huge heads and bodies, other names, other origins."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.servers import SERVERS, TOKEN, all_sockets, bearer, request

pytestmark = pytest.mark.service

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with all_sockets(tmp_path_factory.mktemp("servers")) as ports:
        yield ports


@pytest.fixture
def port(ports: dict[str, int], name: str) -> int:
    return ports[name]


@pytest.fixture(params=SERVERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(10)
    return connection


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read an answer up to the connection's end; status 0 if there was none."""
    raw = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            raw += part
    head, _, body = raw.partition(b"\r\n\r\n")
    if not head:
        return 0, {}, b""
    status, *lines = head.decode("latin-1").split("\r\n")
    return int(status.split()[1]), {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}, body


def ask(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(port) as connection:
        connection.sendall(data)
        return answer(connection)


def is_json_error(name: str, headers: dict[str, str], body: bytes) -> bool:
    """Whether an answer has the form that the server gives its errors, with one line of text."""
    said, server = json.loads(body), SERVERS[name]
    own = set(said) == {server.error[0], *server.also}
    for key in server.error:
        said = said[key]
    return headers["content-type"] == "application/json" and own and isinstance(said, str) and "\n" not in said


@pytest.mark.parametrize("kind", ["many fields", "a large field", "an endless field", "an endless target"])
def test_an_endless_head_is_refused_before_it_takes_memory(port: int, kind: str) -> None:
    before = psutil.Process().memory_info().rss
    taken = 0
    begin = {"an endless target": b"GET /", "an endless field": b"GET / HTTP/1.1\r\nx: "}.get(
        kind, b"GET / HTTP/1.1\r\n"
    )
    piece = {"many fields": b"a: b\r\n" * 10_000, "a large field": b"x: " + b"y" * MIB + b"\r\n"}.get(kind, b"y" * MIB)
    with connect(port) as connection:
        connection.sendall(begin)
        try:
            while taken < 160 * MIB:
                connection.sendall(piece)
                taken += len(piece)
        except ConnectionError:
            pass
        status, _, _ = answer(connection)
    assert taken < 16 * MIB, "what is more than the kernel's own buffers was taken"
    assert status in (0, 400)
    assert psutil.Process().memory_info().rss - before < 16 * MIB


def test_a_body_beyond_its_limit_is_refused_without_the_token_and_unread(port: int, name: str) -> None:
    method, path, _ = SERVERS[name].goal
    status, headers, body = ask(port, request(method, path, content_length=str(10**9), content_type="application/json"))
    assert (status, headers["connection"]) == (413, "close") and is_json_error(name, headers, body)
    status, headers, body = ask(
        port, request(method, path, content_length="", transfer_encoding="chunked") + b"5\r\nhello\r\n"
    )
    assert status == 411 and is_json_error(name, headers, body)


def test_a_wrong_token_is_refused_before_a_body_is_read(port: int, name: str) -> None:
    method, path, _ = SERVERS[name].goal
    asked = "POST" if name == "page" else method
    begun = time.monotonic()
    for given in ({}, bearer("wrong"), bearer(TOKEN[:-1]), bearer(TOKEN + "x"), {"authorization": f"Basic {TOKEN}"}):
        status, headers, body = ask(port, request(asked, path, content_type="application/json", **given))
        assert status == 401 and is_json_error(name, headers, body)
    assert time.monotonic() - begun < 3
    status, headers, body = ask(port, request(asked, path, content_length="60000", content_type="application/json"))
    assert status == 401 and is_json_error(name, headers, body)
    assert time.monotonic() - begun < 6, "a small body is waited for a second, so that its sender gets the answer"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "evil.example:80", "0.0.0.0", "a b", ""],
)
def test_another_name_for_this_machine_is_refused_with_the_token_too(port: int, name: str, host: str) -> None:
    method, path, sent = SERVERS[name].goal
    for asked in (path, SERVERS[name].health):
        status, headers, body = ask(port, request(method, asked, sent, host=host, **bearer()))
        assert status == 421 and is_json_error(name, headers, body), asked


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example", "file://", ""]
)
def test_a_page_of_another_origin_is_refused_with_the_token_too(port: int, name: str, origin: str) -> None:
    method, path, sent = SERVERS[name].goal
    given = {"origin": origin or f"http://evil.example:{port}"}
    # An image of another page sends no Origin.
    for one in (given, {"sec-fetch-site": "cross-site"}):
        status, headers, body = ask(port, request(method, path, sent, host=f"127.0.0.1:{port}", **one, **bearer()))
        assert status == 403 and is_json_error(name, headers, body) and "access-control-allow-origin" not in headers


def test_what_is_asked_rightly_is_answered(port: int, name: str) -> None:
    method, path, sent = SERVERS[name].goal
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]", "LOCALHOST"):
        given = {"origin": f"http://{host}"} if name == "page" else {}
        status, _, body = ask(port, request(method, path, sent, host=host, **given, **bearer()))
        assert status == (404 if name == "page" and host != f"127.0.0.1:{port}" else 200), body
