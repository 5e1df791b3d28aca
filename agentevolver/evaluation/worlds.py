"""Environments of an evaluation: in this process, behind a running service, or behind a new one."""

from __future__ import annotations

import os
import secrets
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
from env_service.settings import TOKEN_VARIABLE

START_S = 120.0


@asynccontextmanager
async def open_world(names: Sequence[str], modules: Sequence[str] = (), url: str | None = None) -> AsyncIterator[Any]:
    """Yield a client of the environments (methods of `AsyncEnvClient`).

    Args:
        modules: `NAME=package.module:Class` of unregistered environments.
        url: running service; None: shared environments run in this process, others in a new service.

    Raises:
        UsageError: an environment is unknown or cannot be imported.
        LaunchError: the service does not answer.
    """
    if url is not None:
        async with AsyncEnvClient(url) as client:
            if not await client.health():
                raise LaunchError(f"--env-url {url}: no environment service answers there")
            yield client
        return
    try:
        # A list, not a generator: `all` would stop at the first False and leave later names unchecked.
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
    async with _served(names, modules) as client:
        yield client


@asynccontextmanager
async def _served(names: Sequence[str], modules: Sequence[str]) -> AsyncIterator[AsyncEnvClient]:
    given = [item for name in names for item in ("--env", name)]
    given += [item for module in modules for item in ("--env-module", module)]
    with tempfile.TemporaryDirectory(prefix="agentevolver-eval-") as folder:
        log = Path(folder) / "env_service.log"
        env = {**os.environ, TOKEN_VARIABLE: (token := secrets.token_urlsafe())}  # keeps other users out
        service = serving(("env_service", "serve", *given), "the environment service", log, START_S, env)
        async with service as url, AsyncEnvClient(url, token=token) as client:
            yield client
