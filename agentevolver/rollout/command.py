"""The user's agent as a program: one process a rollout, in a folder of its own.

It finds the gateway in the variables of OpenAI's and Anthropic's clients, and the rollout's routes in `AGENTEVOLVER_*`.
It inherits this process's variables except secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentevolver.rollout.agent import AgentFailed, Result
from agentevolver.rollout.gateway.server import GatewayEndpoint
from agentevolver.rollout.world import LiveWorld
from agentevolver.types import Task
from agentevolver.utils import lifeline
from agentevolver.utils.process_environment import exemptions
from agentevolver.utils.secrets import SECRETS, masked_text, secrets_in

# Bytes of a program's output that an error shows, and that it may print at all.
TAIL_BYTES = 4096
OUTPUT_BYTES = 64 * 1024 * 1024
# Variables that lead to the run's own processes and secrets.
_HIDDEN_PREFIXES = ("RAY_", "VLLM_", "TQ_", "OPENAI_", "ANTHROPIC_")
_END_S = 10.0


@dataclass(slots=True)
class CommandAgent:
    """An agent that is a program; placeholders such as `{query}` are filled into `words`."""

    words: Sequence[str]
    output_bytes: int = OUTPUT_BYTES

    async def play(self, task: Task, endpoint: GatewayEndpoint, world: LiveWorld | None) -> Result:
        """Run the program to its end; it may post a score to the route `result`. Raises AgentFailed for a non-zero exit
        code."""
        folder = Path(tempfile.mkdtemp(prefix="agent-"))
        try:
            told = folder / "task.json"
            told.write_bytes(task_file(task, world))
            words = filled(self.words, task, endpoint, world, str(told))
            environ = {**inherited(os.environ), **variables(endpoint, world, str(told))}
            environ |= {"HOME": str(folder), "TMPDIR": str(folder)}
            ran = await run_program(words, environ, folder, self.output_bytes)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, True))
        ran.check(endpoint, self.output_bytes)
        return Result()


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished program: exit code, end of its output, and whether the output exceeded the limit."""

    code: int
    printed: bytes
    flooded: bool = False

    @property
    def tail(self) -> str:
        """The end of the output as text, with secrets masked."""
        return masked_text(self.printed.decode("utf-8", "replace").strip())

    def check(self, endpoint: GatewayEndpoint, output_bytes: int = OUTPUT_BYTES) -> None:
        """Raise AgentFailed unless the program succeeded."""
        if self.flooded:
            raise AgentFailed(f"the program printed more than {output_bytes} bytes and was ended")
        if self.code != 0:
            tail = self.tail.replace(endpoint.api_key, "***")
            raise AgentFailed(f"the program ended with code {self.code}; it printed at last: {tail or 'nothing'}")


def task_file(task: Task, world: LiveWorld | None) -> bytes:
    opening = [] if world is None else world.messages
    return orjson.dumps({**task.to_dict(), "messages": opening, "tools": [] if world is None else world.tools})


def filled(
    words: Sequence[str], task: Task, endpoint: GatewayEndpoint, world: LiveWorld | None, told: str
) -> list[str]:
    """Return the command line of one rollout, placeholders filled; `told` is the path of the task's file."""
    query = task.query or (str(world.messages[-1]["content"]) if world is not None and world.messages else "")
    # Every user can read a command line: its addresses need the key in a header.
    open_url = endpoint.root_url.removesuffix(f"/r/{endpoint.api_key}")
    values = {
        "query": query.replace("\0", ""),
        "base_url": f"{open_url}/v1",
        "anthropic_base_url": open_url,
        "model": endpoint.model,
        "mcp_url": f"{open_url}/mcp",
        "task_file": told,
    }
    return [word.format(**values) for word in words]


def variables(endpoint: GatewayEndpoint, world: LiveWorld | None, told: str) -> dict[str, str]:
    root = endpoint.root_url
    found = {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_BASE": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "AGENTEVOLVER_MODEL": endpoint.model,
        "AGENTEVOLVER_TASK": told,
        "AGENTEVOLVER_RESULT_URL": f"{root}/result",
    }
    if world is not None:
        found |= {"AGENTEVOLVER_WORLD_URL": f"{root}/world", "AGENTEVOLVER_MCP_URL": f"{root}/mcp"}
    return found | exemptions(os.environ)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the user's program may see."""
    hidden = {*secrets_in(environ), SECRETS}
    return {
        name: value for name, value in environ.items() if name not in hidden and not name.startswith(_HIDDEN_PREFIXES)
    }


async def run_program(
    words: Sequence[str], environ: Mapping[str, str], folder: Path, output_bytes: int = OUTPUT_BYTES
) -> Ran:
    """Run a program. All processes it started end if this is cancelled or the output exceeds the limit."""
    loop = asyncio.get_running_loop()
    process = subprocess.Popen(
        lifeline.command(words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=dict(environ),
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    reader = asyncio.StreamReader(limit=TAIL_BYTES)
    transport: Any = None
    tail, size = b"", 0
    try:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        while size <= output_bytes and (part := await reader.read(65536)):
            tail, size = (tail + part)[-TAIL_BYTES:], size + len(part)
    finally:
        # Closing the pipe ends the program and all its subprocesses (`utils.lifeline`).
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        if transport is not None:
            transport.close()
        await asyncio.shield(asyncio.to_thread(_reap, process))
    return Ran(process.returncode, tail, size > output_bytes)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_S)
