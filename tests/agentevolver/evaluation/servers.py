"""A chat model behind HTTP that knows PocketWorld's answers, or says what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[list[dict[str, Any]]], str]


@contextmanager
def chat_server(answer: Answer, key: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve /v1/chat/completions; gives its URL and the requests that came."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append(asked)
            if key and self.headers.get("authorization") != f"Bearer {key}":
                self._say(401, {"error": {"message": "wrong key"}})
                return
            message = {"role": "assistant", "content": answer(asked["messages"])}
            self._say(200, {
                "id": "x", "object": "chat.completion", "created": 0, "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            })  # fmt: skip

        def _say(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def notes_alone(messages: list[dict[str, Any]]) -> str:
    """Solve the tasks that add one note, and give up on all others."""
    task, said = messages[1]["content"], [one for one in messages if one["role"] == "assistant"]
    words = task.split()
    if not said and words[:2] == ["add", "note"] and len(words) == 6:
        return f"note.add {words[2]} {words[5]}"
    return "done"
