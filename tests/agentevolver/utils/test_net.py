"""What a server binds for the host that it was given."""

from __future__ import annotations

import socket

import pytest

from agentevolver.utils.net import port_is_free
from env_service.http.app import StartError, bind


@pytest.mark.parametrize("host", ["nobody", "a" * 70 + ".example", "192.0.2.1"])
def test_a_host_that_cannot_be_served_is_one_line(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if host == "nobody":

        def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert not port_is_free(8080, host)
    with pytest.raises(StartError, match=rf"^cannot listen on {host}:8080: (?!None).+; choose another --port"):
        bind(host, 8080)
