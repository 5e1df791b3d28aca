"""A chat model at an address on loopback, for the tests of environments that ask one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Model:
    """A chat API that gives prepared replies, a status where one is a number, and notes what it is asked. Where none is
    prepared, `otherwise` makes one of what is asked."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.otherwise: Callable[[dict[str, Any]], Any] = lambda asked: 500
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                model.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                model.keys.append(self.headers["Authorization"])
                reply = model.replies.pop(0) if model.replies else model.otherwise(model.asked[-1])
                body = b"" if isinstance(reply, int) else json.dumps({"choices": [{"message": reply}]}).encode()
                self.send_response(reply if isinstance(reply, int) else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def served() -> Iterator[Model]:
    """A model that answers while the block lasts."""
    made = Model()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
