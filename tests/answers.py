"""An HTTP server on loopback that answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentevolver.llm.examples import with_examples


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: Message
    body: bytes


@contextmanager
def answering(answer: Callable[[Asked], tuple[int, bytes]]) -> Iterator[str]:
    """Serve while the block lasts: `answer` returns status and body. Gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, body = answer(Asked(self.command, self.path, self.headers, sent))
            self.send_response(status)
            self.send_header("content-type", "application/json" if body.startswith(b"{") else "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def without_examples(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a prompt as its role wrote it, without the examples that models are shown."""
    examples = with_examples(messages)[1 : len(with_examples(messages)) - len(messages) + 1]
    rest = messages[1 + len(examples) :] if messages[1 : 1 + len(examples)] == examples else messages[1:]
    return [*messages[:1], *rest]
