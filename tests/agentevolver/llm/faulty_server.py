"""A loopback server that answers chat completions as a script says: well, wrongly, late, in part, or never."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import openai._base_client
import pytest

from agentevolver.llm import endpoint


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all pauses between tries a hundred times shorter."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.005)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.08)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(endpoint, "LONGEST_PAUSE_S", 0.2)


@dataclass
class Said:
    """What the server does to one request: `hang` never answers, `drip` sends a byte now and then, `cut` closes in the
    middle, `reset` at once.

    `message` holds further keys of the reply's message.
    """

    text: str | None = "hello"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    usage: dict[str, int] | None = field(
        default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    )
    finish_reason: str = "stop"
    delay_s: float = 0.0
    message: dict[str, Any] = field(default_factory=dict)
    manner: str = "answer"


@dataclass
class Request:
    headers: dict[str, str]
    body: dict[str, Any]
    path: str = "/v1/chat/completions"


Script = list[Said] | Callable[[int, dict[str, Any]], Said]


class FaultyServer:
    """Plays a script: a list (its last entry is repeated) or a function of (number, body). `requests` are those that
    came in."""

    def __init__(self, script: Script, *, port: int = 0) -> None:
        self.script = script
        self.requests: list[Request] = []
        self._wanted_port = port
        self.in_flight = self.most_in_flight = 0
        self.port = 0

    async def __aenter__(self) -> FaultyServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._wanted_port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def said(self, request: Request) -> Said:
        """Return what is done to a request."""
        number = len(self.requests)
        self.requests.append(request)
        return (
            self.script(number, request.body)
            if callable(self.script)
            else self.script[min(number, len(self.script) - 1)]
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            with suppress(ConnectionError):
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
        request = Request(headers, body, path=head.split(" ", 2)[1])
        said = self.said(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(said.delay_s)
            return await self._answer(said, writer)
        finally:
            self.in_flight -= 1

    async def _answer(self, said: Said, writer: asyncio.StreamWriter) -> bool:
        if said.manner == "hang":
            await asyncio.sleep(3600)
        if said.manner == "reset":
            return False
        payload = said.body if said.body is not None else _payload(said)
        lines = [f"HTTP/1.1 {said.status} X", f"content-length: {len(payload)}"]
        lines += [f"{k}: {v}" for k, v in ({"content-type": "application/json"} | said.headers).items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        if said.manner == "drip":
            for byte in payload:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
        elif said.manner == "cut":
            writer.write(payload[: len(payload) // 2])
            await writer.drain()
            return False
        else:
            writer.write(payload)
        await writer.drain()
        return True


def _payload(said: Said) -> bytes:
    if said.status != 200:
        return json.dumps({"error": {"message": said.text or "no", "type": "fault", "code": None}}).encode()
    message = {"role": "assistant", "content": said.text} | said.message
    data: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    data["choices"] = [{"index": 0, "message": message, "finish_reason": said.finish_reason}]
    if said.usage is not None:
        data["usage"] = said.usage
    return json.dumps(data).encode()
