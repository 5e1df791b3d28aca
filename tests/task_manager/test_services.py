"""Services that a command starts where nobody did: how they are asked whether they are there."""

import socket
import threading

import pytest

from task_manager.services import _ask

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 51\r\n\r\n"


@pytest.mark.service
@pytest.mark.parametrize(
    ("said", "launch_id"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", None),
        (HEAD + b"[", None),
        (HEAD + b'{"name": "n", "version": "1", "launch_id": "mine"}\n', "mine"),
    ],
)
def test_a_service_is_asked_without_a_proxy_and_told_from_somebody_elses(said, launch_id, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        answers, identity = _ask(f"http://127.0.0.1:{server.getsockname()[1]}/healthz")
        thread.join()
    assert answers and (identity and identity.launch_id) == launch_id
