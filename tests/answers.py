"""An HTTP server on loopback that answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentevolver.llm.examples import with_examples


@contextmanager
def answering(answer: Callable[[str, str], tuple[int, bytes]]) -> Iterator[str]:
    """Serve while the block lasts: `answer` takes method and path, and returns status and body. Gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.command, self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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
