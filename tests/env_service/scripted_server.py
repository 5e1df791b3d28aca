"""A server on loopback that answers each request as the test's script says: a reply, a cut connection, or silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

CUT = "cut"
SILENCE = "silence"


def reply(
    data: Any = None, status: int = 200, headers: dict[str, str] | None = None, **facts: Any
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return a script line for an answer."""
    return status, {"success": status == 200, "data": data, **facts} if status == 200 else facts, headers or {}


class ScriptedServer:
    """What the server saw: `requests` holds (path, headers, body)."""

    def __init__(self, script: list[Any]) -> None:
        self.script = list(script)
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while line := await reader.readline():
                path = line.split()[1].decode()
                headers: dict[str, str] = {}
                while header := (await reader.readline()).strip():
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append((path, headers, json.loads(body or b"{}")))
                action = self.script.pop(0)
                if action == CUT:
                    return
                if action == SILENCE:
                    await asyncio.sleep(60)
                status, answer, extra = action
                payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                lines = [
                    f"HTTP/1.1 {status} X",
                    f"Content-Length: {len(payload)}",
                    *(f"{k}: {v}" for k, v in extra.items()),
                ]
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def scripted(*script: Any) -> AsyncIterator[ScriptedServer]:
    """Run a scripted server; at the end every line of the script must have been used."""
    plan = ScriptedServer(list(script))
    server = await asyncio.start_server(plan.handle, "127.0.0.1", 0)
    plan.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield plan
        assert not plan.script, f"the client did not ask for {plan.script}"
    finally:
        server.close()
