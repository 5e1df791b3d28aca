"""A chat model at an address on loopback, for the tests of environments that ask one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.answers import Asked, answering


class Model:
    """A chat API that gives prepared replies, a status where one is a number, and notes what it is asked. Where none is
    prepared, `otherwise` makes one of what is asked."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.otherwise: Callable[[dict[str, Any]], Any] = lambda asked: 500
        self.url = ""

    def answer(self, sent: Asked) -> tuple[int, bytes]:
        """Return status and body for a request."""
        self.asked.append(json.loads(sent.body))
        self.keys.append(sent.headers["Authorization"])
        reply = self.replies.pop(0) if self.replies else self.otherwise(self.asked[-1])
        return (reply, b"") if isinstance(reply, int) else (200, json.dumps({"choices": [{"message": reply}]}).encode())


@contextmanager
def served() -> Iterator[Model]:
    """A model that answers while the block lasts."""
    made = Model()
    with answering(made.answer) as made.url:
        yield made
