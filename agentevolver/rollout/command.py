"""The user's agent as a program: one process a rollout, in a folder of its own, ended with all that it has started.

It finds the gateway in the variables that OpenAI's and Anthropic's clients read, and the rollout's own routes in
`AGENTEVOLVER_*`. Of this process's variables it inherits those that are no secrets. A lifeline ends it when the rollout
ends, and when this process dies (`agentevolver.utils.lifeline`).
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

from agentevolver.gateway.server import Endpoint
from agentevolver.rollout.agent import AgentFailed, Result
from agentevolver.rollout.world import LiveWorld
from agentevolver.types import Task
from agentevolver.utils import lifeline
from agentevolver.utils.net import LOOPBACK
from agentevolver.utils.secrets import SECRETS, masked_text, secrets_in

# Of what a program prints, what is kept for an error; and what it may print at all.
TAIL_BYTES = 4096
OUTPUT_BYTES = 64 * 1024 * 1024
# Variables that lead to the run's own processes and secrets.
_HIDDEN_PREFIXES = ("RAY_", "VLLM_", "TQ_", "OPENAI_", "ANTHROPIC_")
_END_S = 10.0


@dataclass(slots=True)
class CommandAgent:
    """An agent that is a program.

    Args:
        words: the command; `{query}` and the like are filled in.
        output_bytes: what it may print.
    """

    words: Sequence[str]
    output_bytes: int = OUTPUT_BYTES

    async def play(self, task: Task, endpoint: Endpoint, world: LiveWorld | None) -> Result:
        """Run the program to its end; its score, if it has one, is posted to the rollout's route `result`. Raises
        AgentFailed for an exit code other than 0, with the end of what it printed."""
        folder = Path(tempfile.mkdtemp(prefix="agent-"))
        try:
            words, environ = _prepared(self.words, task, endpoint, world, folder)
            code, printed, flooded = await _run(words, environ, folder, self.output_bytes)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, True))
        if flooded:
            raise AgentFailed(f"the program printed more than {self.output_bytes} bytes and was ended")
        if code != 0:
            tail = masked_text(printed.decode("utf-8", "replace").replace(endpoint.api_key, "***").strip())
            raise AgentFailed(f"the program ended with code {code}; it printed at last: {tail or 'nothing'}")
        return Result()


def _prepared(
    words: Sequence[str], task: Task, endpoint: Endpoint, world: LiveWorld | None, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the words and the variables of a rollout's program, whose task lies in its folder."""
    root = endpoint.root_url
    told = folder / "task.json"
    opening = [] if world is None else world.messages
    told.write_bytes(
        orjson.dumps({**task.to_dict(), "messages": opening, "tools": [] if world is None else world.tools})
    )
    query = task.query or (str(opening[-1]["content"]) if opening else "")
    filled = {
        "query": query.replace("\0", ""),
        "base_url": endpoint.base_url,
        "anthropic_base_url": root,
        "api_key": endpoint.api_key,
        "model": endpoint.model,
        "mcp_url": f"{root}/mcp",
        "task_file": str(told),
    }
    environ = {
        **_inherited(os.environ),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_BASE": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "AGENTEVOLVER_MODEL": endpoint.model,
        "AGENTEVOLVER_TASK": str(told),
        "AGENTEVOLVER_WORLD_URL": f"{root}/world",
        "AGENTEVOLVER_MCP_URL": f"{root}/mcp",
        "AGENTEVOLVER_RESULT_URL": f"{root}/result",
    }
    for name in ("NO_PROXY", "no_proxy"):
        environ[name] = ",".join(filter(None, (environ.get(name), LOOPBACK, "localhost")))
    return lifeline.command([word.format(**filled) for word in words]), environ


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program of the user's may see."""
    hidden = {*secrets_in(environ), SECRETS}
    return {
        name: value for name, value in environ.items() if name not in hidden and not name.startswith(_HIDDEN_PREFIXES)
    }


async def _run(words: list[str], environ: dict[str, str], folder: Path, most: int) -> tuple[int, bytes, bool]:
    """Run a program; returns its code, the end of what it printed, and whether that was too much."""
    loop = asyncio.get_running_loop()
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environ,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    reader = asyncio.StreamReader(limit=TAIL_BYTES)
    transport: Any = None
    tail, size = b"", 0
    try:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        while size <= most and (part := await reader.read(65536)):
            tail, size = (tail + part)[-TAIL_BYTES:], size + len(part)
    finally:
        # The pipe is the lifeline: with it go the program and all that it has started.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        if transport is not None:
            transport.close()
        await asyncio.shield(asyncio.to_thread(_reap, process))
    return process.returncode, tail, size > most


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_S)
