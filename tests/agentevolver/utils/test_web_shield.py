"""Rules of access and the shield before an application, without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from agentevolver.utils.web.access import Access, AccessRefused, is_loopback
from agentevolver.utils.web.shield import Shield


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node1", "localhost.example", "127.0.0.1.example", ""])
def test_whoever_can_be_reached_from_elsewhere_needs_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ValueError, match="set THE_TOKEN"):
        Access(host, variable="THE_TOKEN")
    assert Access(host, "t").token == "t"


@pytest.mark.parametrize("token", ["a b", "a\n", "é", "a\x00", "\t"])
def test_a_token_that_a_header_cannot_carry_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="THE_TOKEN travels in an HTTP header"):
        Access("127.0.0.1", token, "THE_TOKEN")


def test_a_token_that_a_cookie_cannot_carry_is_refused_where_there_is_one() -> None:
    assert Access("127.0.0.1", "a;b").token == "a;b"
    with pytest.raises(ValueError, match="a cookie"):
        Access("127.0.0.1", "a;b", cookie="c")


def test_beyond_loopback_any_name_is_answered_and_everything_but_health_needs_the_token() -> None:
    access = Access("0.0.0.0", "t", open_reading=True)
    access.check_names({b"host": b"example.org"})
    access.check_token("GET", "/healthz", b"", {})
    access.check_token("POST", "/x", b"", {b"authorization": b"bearer  t "})
    for method, given in (
        ("GET", b""),
        ("POST", b"Bearer"),
        ("POST", b"Bearer T"),
        ("POST", b"Basic t"),
        ("POST", b"Bearer \xff"),
    ):
        with pytest.raises(AccessRefused) as refused:
            access.check_token(method, "/x", b"", {b"authorization": given})
        assert refused.value.status == 401 and b"www-authenticate" in dict(refused.value.headers)


def test_a_browser_logs_in_once_and_its_cookie_reads_only() -> None:
    access = Access("0.0.0.0", "t", cookie="c")
    with pytest.raises(AccessRefused) as on:
        access.check_token("GET", "//evil.example/", b"a=b&token=t", {})
    headers = dict(on.value.headers)
    assert on.value.status == 303 and headers[b"location"] == b"/"
    assert headers[b"set-cookie"] == b"c=t; HttpOnly; Path=/; SameSite=Strict"
    access.check_token("GET", "/x", b"", {b"cookie": b"a=b; c=t"})
    wrong = (
        ("GET", b"token=T", b""),
        ("GET", b"", b"c=T"),
        ("GET", b"", b"cc=t"),
        ("POST", b"token=t", b""),
        ("DELETE", b"", b"c=t"),
    )
    for method, query, cookie in wrong:
        with pytest.raises(AccessRefused) as refused:
            access.check_token(method, "/x", query, {b"cookie": cookie})
        assert refused.value.status == 401


async def ask(
    shield: Shield, *headers: tuple[bytes, bytes], kind: str = "http", body: bytes = b""
) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": "POST",
        "path": "//x",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers],
    }
    await shield(scope, receive, send)
    return sent


async def test_what_an_application_raises_is_a_500_that_names_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret detail")

    start, body = await ask(Shield(app, Access("127.0.0.1"), 10, headers=((b"x-own", b"1"),)))
    error_id = body["body"].decode().rpartition(" ")[2].rstrip('"}')
    assert start["status"] == 500 and (b"x-own", b"1") in start["headers"] and b"secret" not in body["body"]
    assert error_id in caplog.text and "secret detail" in caplog.text
