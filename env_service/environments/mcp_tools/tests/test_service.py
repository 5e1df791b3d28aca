"""Under the service: real MCP servers below an instance's own process, ended with it however it ends."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from local_hosts import eventually, serving

from env_service.errors import EnvironmentFailed, InstanceLost
from env_service.hosting.wire import unpack

from .solutions import SOLUTIONS, calling, said

pytestmark = pytest.mark.service

MCP = {"mcp": "env_service.environments.mcp_tools.env:McpEnv"}


def servers() -> list[psutil.Process]:
    """The notes servers below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "notes_server.py" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


async def test_an_example_is_solved_through_the_service() -> None:
    async with serving(MCP) as running:
        service = running.service
        calls, message = SOLUTIONS["notes.delete.1"]
        await service.create("mcp", "notes.delete.1", "a", {})
        for call in calls:
            await service.step("a", calling(call), {}, None)
        assert unpack(await service.step("a", said(message), {}, None))["reward"] == 1.0
        assert len(servers()) == 1
        await service.release("a")
        await eventually(lambda: not servers())


async def test_a_server_that_dies_fails_the_step_and_not_the_score() -> None:
    async with serving(MCP) as running:
        await running.service.create("mcp", "notes.read.1", "a", {})
        os.kill(servers()[0].pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match=r"failed in step \(ServerError\)"):
            await running.service.step("a", calling(("note_list", {})), {}, None)
        await running.service.release("a")


async def test_a_killed_instance_takes_its_servers_with_it() -> None:
    async with serving(MCP) as running:
        await running.service.create("mcp", "notes.read.1", "a", {})
        (server,) = servers()
        os.kill(server.ppid(), signal.SIGKILL)
        with pytest.raises(InstanceLost):
            await running.service.step("a", calling(("note_list", {})), {}, None)
        await eventually(lambda: not servers())
