"""The four servers over real sockets, attacked without a token: slow and huge heads, slow and huge bodies, other names,
other origins."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from tests.four_servers import NAMES, TOKEN, bearer, four_sockets, request

pytestmark = pytest.mark.service

HEAD_S = 1.0
BODY_S = 1.5
MIB = 1024 * 1024
# A route of each that changes or tells something, and its body.
GOALS = {
    "environment": ("POST", "/get_env_profile", b'{"env_type": "pocket"}'),
    "experience": ("POST", "/vector_store", b'{"action": "delete"}'),
    "page": ("DELETE", "/api/experience/default/e1", b""),
    "teacher": ("GET", "/v1/models", b""),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The four with a token, and with little patience."""
    with four_sockets(tmp_path_factory.mktemp("four"), head_s=HEAD_S, body_s=BODY_S, idle_s=2) as ports:
        yield ports


@pytest.fixture
def port(ports: dict[str, int], name: str) -> int:
    return ports[name]


@pytest.fixture(params=NAMES)
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


def one_answer(connection: socket.socket) -> bytes:
    """Read one answer of a connection that stays open, and return its head."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(65536)
    head, _, body = raw.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head


def ask(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(port) as connection:
        connection.sendall(data)
        return answer(connection)


def is_json_error(name: str, headers: dict[str, str], body: bytes) -> bool:
    """Whether an answer has the form that the server gives its errors, with one line of text."""
    found = json.loads(body)
    said = found["error"]["message"] if name == "teacher" else found["detail"]
    own = set(found) == {"environment": {"success", "detail", "code"}, "teacher": {"error"}}.get(name, {"detail"})
    return headers["content-type"] == "application/json" and own and isinstance(said, str) and "\n" not in said


def closed_after(connection: socket.socket, since: float) -> float:
    """Wait for the end of a connection and return the seconds that it lasted."""
    answer(connection)
    return time.monotonic() - since


def dripped(port: int, begin: bytes, piece: bytes, limit_s: float) -> tuple[int, dict[str, str], bytes, float]:
    """Send a piece of a request ten times in `limit_s` until there is an answer; return it, and the seconds up to the
    connection's end."""
    with connect(port) as connection:
        begun = time.monotonic()
        connection.sendall(begin)
        while not select.select([connection], [], [], limit_s / 10)[0] and time.monotonic() - begun < 4 * limit_s:
            connection.sendall(piece)
        return *answer(connection), time.monotonic() - begun


def test_half_sent_headers_do_not_stay_open(port: int, name: str) -> None:
    with ExitStack() as stack:
        begun = time.monotonic()
        halves = (b"", b"G", b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\na: b")
        connections = [stack.enter_context(connect(port)) for _ in range(300)]
        for number, connection in enumerate(connections):
            connection.sendall(halves[number % 3])
        assert ask(port, request("GET", "/nowhere", **bearer()))[0] == 404, "others are served meanwhile"
        answers = [answer(connection) for connection in connections]
        assert time.monotonic() - begun < 3 * HEAD_S + 2
    assert [status for status, _, _ in answers] == [(0, 408, 408)[number % 3] for number in range(300)]
    assert all(is_json_error(name, headers, body) for status, headers, body in answers if status)


def test_a_header_now_and_then_is_no_way_to_stay(port: int, name: str) -> None:
    status, headers, body, lasted = dripped(port, b"GET / HTTP/1.1\r\n", b"x: y\r\n", HEAD_S)
    assert status == 408 and is_json_error(name, headers, body) and lasted < 2 * HEAD_S


@pytest.mark.parametrize("junk", [b"\r\n", b"\r\nGET /heal"])
def test_a_connection_that_was_served_once_is_no_way_to_stay(ports: dict[str, int], junk: bytes) -> None:
    with connect(ports["teacher"]) as connection:
        connection.sendall(request("GET", "/healthz", close=False))
        assert one_answer(connection).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        connection.sendall(junk)
        assert closed_after(connection, begun) < 2 * HEAD_S


def test_a_connection_that_asks_nothing_more_is_closed(ports: dict[str, int]) -> None:
    with connect(ports["teacher"]) as connection:
        connection.sendall(request("GET", "/healthz", close=False))
        assert one_answer(connection).startswith(b"HTTP/1.1 200")
        assert 1.5 < closed_after(connection, time.monotonic()) < 4


@pytest.mark.parametrize("kind", ["many fields", "a large field", "an endless field", "an endless target"])
def test_a_head_beyond_its_limit_is_refused_before_it_takes_memory(port: int, name: str, kind: str) -> None:
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
        status, headers, body = answer(connection)
    assert taken < 16 * MIB, "what is more than the kernel's own buffers was taken"
    assert status == 0 or (status == 431 and is_json_error(name, headers, body))
    assert psutil.Process().memory_info().rss - before < 16 * MIB


def test_a_head_just_beyond_its_limit_is_a_431_and_one_below_is_served(port: int, name: str) -> None:
    for count, size, wanted in ((101, 1, 431), (90, 1, 404), (40, 900, 431), (30, 900, 404)):
        fields = {f"x_{number}": "y" * size for number in range(count)}
        status, headers, body = ask(port, request("GET", "/nowhere", **bearer(), **fields))
        assert (status, is_json_error(name, headers, body)) == (wanted, True), (count, size)


def test_a_body_beyond_its_limit_is_refused_without_the_token_and_unread(port: int, name: str) -> None:
    method, path, _ = GOALS[name]
    status, headers, body = ask(port, request(method, path, content_length=str(10**9), content_type="application/json"))
    assert (status, headers["connection"]) == (413, "close") and is_json_error(name, headers, body)
    status, headers, body = ask(
        port, request(method, path, content_length="", transfer_encoding="chunked") + b"5\r\nhello\r\n"
    )
    assert status == 411 and is_json_error(name, headers, body)


def test_a_wrong_token_is_refused_before_a_body_is_read(port: int, name: str) -> None:
    method, path, _ = GOALS[name]
    asked = "POST" if name == "page" else method
    begun = time.monotonic()
    for given in ({}, bearer("wrong"), bearer(TOKEN[:-1]), bearer(TOKEN + "x"), {"authorization": f"Basic {TOKEN}"}):
        status, headers, body = ask(port, request(asked, path, content_type="application/json", **given))
        assert status == 401 and is_json_error(name, headers, body)
    assert time.monotonic() - begun < 3
    status, headers, body = ask(port, request(asked, path, content_length="60000", content_type="application/json"))
    assert status == 401 and is_json_error(name, headers, body)
    assert time.monotonic() - begun < 6, "a small body is waited for a second, so that its sender gets the answer"


def test_a_body_that_does_not_come_is_given_up(ports: dict[str, int]) -> None:
    begun = time.monotonic()
    with connect(ports["teacher"]) as connection:
        connection.sendall(
            request("POST", "/v1/chat/completions", content_length="100", content_type="application/json", **bearer())
            + b"{"
        )
        status, headers, body = answer(connection)
    assert status == 408 and is_json_error("teacher", headers, body) and time.monotonic() - begun < BODY_S + 1


def test_a_byte_of_a_body_now_and_then_is_no_way_to_stay(ports: dict[str, int]) -> None:
    fields = {"content_length": "100", "content_type": "application/json", **bearer()}
    begin = request("POST", "/v1/chat/completions", **fields)
    status, headers, body, lasted = dripped(ports["teacher"], begin, b" ", BODY_S)
    assert status == 408 and is_json_error("teacher", headers, body) and lasted < 2 * BODY_S


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "evil.example:80", "0.0.0.0", "a b", ""],
)
def test_another_name_for_this_machine_is_refused_with_the_token_too(port: int, name: str, host: str) -> None:
    method, path, sent = GOALS[name]
    for asked in (path, "/health" if name == "experience" else "/healthz"):
        status, headers, body = ask(port, request(method, asked, sent, host=host, **bearer()))
        assert status == 421 and is_json_error(name, headers, body), asked


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example", "file://", ""]
)
def test_a_page_of_another_origin_is_refused_with_the_token_too(port: int, name: str, origin: str) -> None:
    method, path, sent = GOALS[name]
    given = {"origin": origin or f"http://evil.example:{port}"}
    status, headers, body = ask(port, request(method, path, sent, host=f"127.0.0.1:{port}", **given, **bearer()))
    assert status == 403 and is_json_error(name, headers, body) and "access-control-allow-origin" not in headers


def test_what_is_asked_rightly_is_answered(port: int, name: str) -> None:
    method, path, sent = GOALS[name]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]", "LOCALHOST"):
        given = {"origin": f"http://{host}"} if name == "page" else {}
        status, _, body = ask(port, request(method, path, sent, host=host, **given, **bearer()))
        assert status == (404 if name == "page" and host != f"127.0.0.1:{port}" else 200), body


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"\x00\x01\r\n\r\n", {400}),
        (b"GET / HTTP/9.9\r\nhost: 127.0.0.1\r\n\r\n", {400}),
        (b"GET \xff HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {400}),
        (b"OPTIONS * HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {400, 401, 404, 405}),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {400}),
        (request("GET", "/a%00b", **bearer()), {400}),
        (request("GET", "/a?b=%00", **bearer()), {400}),
        (request("GET", "/../../etc/passwd", **bearer()), {404}),
        (request("GET", "/nowhere", **bearer()), {404}),
        (request("BREW", "/nowhere", **bearer()), {400, 404}),
        (request("GET", "/", **bearer()).replace(b"host:", b"host: 127.0.0.1\r\nhost:"), {400}),
        (
            request("GET", "/", **bearer(), content_length="1").replace(
                b"content-length:", b"content-length: 2\r\ncontent-length:"
            ),
            {400},
        ),
        (request("GET", "/", **bearer(), content_length="-1"), {400}),
    ],
)
def test_what_cannot_be_read_or_found_is_json_too_and_not_logged(
    port: int, name: str, data: bytes, statuses: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    status, headers, body = ask(port, data)
    assert not caplog.records
    assert status in statuses and is_json_error(name, headers, body), (status, body)


def test_a_method_that_is_not_there_is_a_405_in_json(port: int, name: str) -> None:
    path = {"page": "/api/state"}.get(name, GOALS[name][1])
    status, headers, body = ask(port, request("PUT", path, **bearer()))
    assert status == 405 and is_json_error(name, headers, body)


@pytest.mark.parametrize("sent", [b'{"messages": "\\ud800"}', b'{"a": NaN}', b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_of_unicode_is_the_callers_mistake(port: int, name: str, sent: bytes) -> None:
    path = {"page": "/api/experience/default/e1", "teacher": "/v1/chat/completions"}.get(name, GOALS[name][1])
    status, headers, body = ask(port, request("PATCH" if name == "page" else "POST", path, sent, **bearer()))
    assert status in (400, 413, 422) and headers["content-type"] == "application/json" and json.loads(body)


def test_an_upgrade_is_not_made_and_a_request_in_pieces_is_served(port: int, name: str) -> None:
    upgrade = request("GET", "/nowhere", connection="upgrade", upgrade="websocket", close=False, **bearer())
    with connect(port) as connection:
        connection.sendall(upgrade)
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")
    method, path, sent = GOALS[name]
    data = request(
        "GET" if name == "page" else method,
        "/api/state" if name == "page" else path,
        sent if name != "page" else b"",
        **bearer(),
    )
    with connect(port) as connection:
        for byte in data:
            connection.sendall(bytes([byte]))
        assert answer(connection)[0] == 200


def test_requests_that_follow_each_other_on_a_connection_are_all_answered(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"".join(request("GET", "/nowhere", close=number == 19, **bearer()) for number in range(20)))
        raw = b""
        while part := connection.recv(65536):
            raw += part
    assert raw.count(b"HTTP/1.1 404") == 20


def test_many_unfinished_heads_together_take_no_more_than_their_share(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("share")
    with four_sockets(folder, head_s=60, waiting_bytes=MIB, connections=150) as ports, ExitStack() as stack:
        port = ports["teacher"]
        for count, sent, left in ((100, b"GET / HTTP/1.1\r\nx: " + b"y" * 30_000, 40), (300, b"G", 149)):
            connections = [stack.enter_context(connect(port)) for _ in range(count)]
            for connection in connections:
                with suppress(ConnectionError):
                    connection.sendall(sent)
            assert ask(port, request("GET", "/nowhere", **bearer()))[0] == 404, "the newest are served"
            assert sum(map(is_open, connections)) <= left


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_a_slow_answer_outlasts_the_patience_with_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Only what the peer owes is timed."""
    import asyncio

    import uvicorn

    from agentevolver.utils.web.server import Limits, server_config

    async def app(scope: dict, receive: object, send: object) -> None:
        await asyncio.sleep(0.8)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        limits = Limits(head_s=0.2, body_s=0.2, idle_s=1)
        server = uvicorn.Server(server_config(app, limits, stop_s=1, lifespan="off", log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert ask(listener.getsockname()[1], request("POST", "/", b"{}"))[0] == 204
        finally:
            server.should_exit = True
            thread.join()
