"""Environments of an evaluation: in this process, behind a running service, or behind one started for it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentevolver.evaluation.serving import serving
from agentevolver.utils.errors import LaunchError, UsageError
from env_service.client import AsyncEnvClient
from env_service.local import LocalClient, is_shared
from env_service.registry import RegistryError

START_S = 120.0


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
    given = [item for name in names for item in ("--env", name)]
    given += [item for module in modules for item in ("--env-module", module)]
    with tempfile.TemporaryDirectory(prefix="agentevolver-eval-") as folder:
        log = Path(folder) / "env_service.log"
        async with serving(("env_service", "serve", *given), "the environment service", log, START_S) as url:
            yield url
