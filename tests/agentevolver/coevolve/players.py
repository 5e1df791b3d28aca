"""Players for tests: one that is told what to answer, and a real server of one on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from agentevolver.coevolve.player.chat import FrozenChat
from agentevolver.coevolve.player.client import Player
from agentevolver.coevolve.player.server import make_app
from agentevolver.coevolve.types import Play
from agentevolver.types import Task
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import server_config

# Makes episode number i of a task, by whom, under which name.
Script = Callable[[Path, Task, int, str], Play]


def answered(answer: str | None, calls: int = 1, score: float = 0.0) -> Play:
    """Return a play that ended with an answer."""
    return Play(answer, calls, score, score >= 1.0, {"calls": calls}, calls + 1)


class ScriptedPlayer:
    """Plays what a function says; keeps what it was asked. `error`, while it is set, is raised instead."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[str, Task, int, str, bool]] = []
        self.error: Exception | None = None

    async def play(
        self, checkpoint: Path | str, task: Task, n: int, name: str, validation: bool = False
    ) -> Sequence[Play]:
        """Return n plays."""
        await asyncio.sleep(0)
        self.asked.append((str(checkpoint), task, n, name, validation))
        if self.error is not None:
            raise self.error
        return [self.script(Path(checkpoint), task, number, name) for number in range(n)]


@asynccontextmanager
async def served(
    player: Player | None, token: str = "", port: int = 0, chat: FrozenChat | None = None
) -> AsyncIterator[str]:
    """Serve a player on loopback, or one that replies; yields its URL."""
    listening = socket.create_server(("127.0.0.1", port))
    app = make_app(player, chat=chat, access=Access("127.0.0.1", token, "PLAYER_TOKEN"))
    server = uvicorn.Server(server_config(app, stop_s=1, log_level="error"))
    serving = asyncio.create_task(server._serve([listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        listening.close()
