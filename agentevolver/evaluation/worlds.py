"""Environments of an evaluation: in this process, behind a running service, or behind one started for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from agentevolver.errors import LaunchError, UsageError
from agentevolver.utils.health import unhealthy
from agentevolver.utils.net import take_any_port
from agentevolver.utils.processes import die_with_parent
from env_service.client import AsyncEnvClient
from env_service.local import LocalClient, is_shared
from env_service.registry import RegistryError

START_S = 120.0
STOP_S = 10.0
POLL_S = 0.25


@asynccontextmanager
async def open_world(names: Sequence[str], modules: Sequence[str] = (), url: str | None = None) -> AsyncIterator[Any]:
    """Yield a client of environments (`AsyncEnvClient`'s methods).

    Args:
        modules: `NAME=package.module:Class` of environments that are not registered.
        url: of a running service; None: shared environments are held here, others behind a service that is started.

    Raises:
        UsageError: an environment is not known or cannot be imported.
        LaunchError: a service does not answer.
    """
    if url is not None:
        async with AsyncEnvClient(url) as client:
            if not await client.health():
                raise LaunchError(f"--env-url {url}: no environment service answers there")
            yield client
        return
    try:
        shared = all([is_shared(name, modules) for name in names])
        local = LocalClient(names, modules) if shared else None
    except RegistryError as error:
        raise UsageError(str(error)) from error
    if local is not None:
        try:
            yield local
        finally:
            await local.close()
        return
    async with _served(names, modules) as address, AsyncEnvClient(address) as client:
        yield client


@asynccontextmanager
async def _served(names: Sequence[str], modules: Sequence[str]) -> AsyncIterator[str]:
    port = take_any_port()
    address = f"http://127.0.0.1:{port}"
    given = [item for name in names for item in ("--env", name)]
    given += [item for module in modules for item in ("--env-module", module)]
    with tempfile.TemporaryDirectory(prefix="agentevolver-eval-") as folder:
        log = Path(folder) / "env_service.log"
        with log.open("wb") as output:
            service = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "env_service", "serve", *given, "--port", str(port)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
            )
        try:
            await _up(service, f"{address}/healthz", log)
            yield address
        finally:
            await _stop(service)


async def _up(service: asyncio.subprocess.Process, url: str, log: Path) -> None:
    began = asyncio.get_running_loop().time()
    while (reason := await unhealthy(url)) is not None:
        if service.returncode is not None or asyncio.get_running_loop().time() - began > START_S:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise LaunchError(
                f"the environment service is not up ({reason}): {lines[-1] if lines else 'it said nothing'}"
            )
        await asyncio.sleep(POLL_S)


async def _stop(service: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(service.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(service.wait(), STOP_S)
