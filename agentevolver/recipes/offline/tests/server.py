"""The teacher, for the tests of all servers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from agentevolver.recipes.offline.teacher import service
from agentevolver.utils.web.access import Access
from tests.servers import Served, Server


async def _make(stack: AsyncExitStack, folder: Path, token: str) -> Served:
    app = service.make_app(service.Teacher(), access=Access("127.0.0.1", token, service.TEACHER_TOKEN))
    return Served(app, app)


SERVER = Server(_make, ("GET", "/v1/models", b""), error=("error", "message"))
