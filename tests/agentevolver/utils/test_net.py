"""What a server binds for the host that it was given."""

from __future__ import annotations

import socket

import pytest

from agentevolver.utils.net import address_to_bind, port_is_free
from env_service.http.app import StartError, bind

V4, V6 = (socket.AF_INET, 1, 6, "", ("10.0.0.7", 0)), (socket.AF_INET6, 1, 6, "", ("fd00::7", 0, 0, 3))


@pytest.mark.parametrize(
    ("found", "address"),
    [([V6, V4], (socket.AF_INET, ("10.0.0.7", 8080))), ([V6], (socket.AF_INET6, ("fd00::7", 8080, 0, 3)))],
)
def test_a_name_is_served_at_its_ipv4_address_else_the_other(
    found: list[object], address: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    assert address_to_bind("node7", 8080) == address


def test_addresses_are_taken_as_they_are() -> None:
    assert address_to_bind("127.0.0.1", 80) == (socket.AF_INET, ("127.0.0.1", 80))
    assert address_to_bind("::1", 80) == (socket.AF_INET6, ("::1", 80, 0, 0))
    assert address_to_bind("", 80) == (socket.AF_INET, ("0.0.0.0", 80))


@pytest.mark.parametrize("host", ["nobody", "a" * 70 + ".example", "192.0.2.1"])
def test_a_host_that_cannot_be_served_is_one_line(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if host == "nobody":

        def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert not port_is_free(8080, host)
    with pytest.raises(StartError, match=rf"^cannot listen on {host}:8080: (?!None).+; choose another --port"):
        bind(host, 8080)


def test_a_machine_without_ipv6_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr("socket.socket", refuse)
    assert not port_is_free(8080, "::1")
    with pytest.raises(StartError, match="Address family not supported"):
        bind("::1", 8080)
