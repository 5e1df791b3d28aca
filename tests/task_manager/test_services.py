"""Services that a command starts where nobody did: how they are asked whether they are there."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from task_manager.services import _ask


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"name": "n", "version": "1", "launch_id": "mine"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        return


@pytest.fixture
def service():
    server = HTTPServer(("127.0.0.1", 0), Healthy)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/healthz"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.service
def test_a_service_is_asked_without_a_proxy(service, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    answers, identity = _ask(service)
    assert answers and identity is not None and identity.launch_id == "mine"


@pytest.mark.service
@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n["])
def test_what_speaks_no_http_or_breaks_off_is_somebody_elses(said):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        assert _ask(f"http://127.0.0.1:{server.getsockname()[1]}/healthz") == (True, None)
        thread.join()
