"""Environments of an evaluation: in this process, behind a running service, or behind one started for it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentevolver.errors import LaunchError, UsageError
from agentevolver.utils.net import take_any_port
from env_service.client import AsyncEnvClient
from env_service.local import LocalClient, is_shared
from env_service.registry import RegistryError
from task_manager.services import ServiceFailed, started


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
    address = f"http://127.0.0.1:{(port := take_any_port())}"
    given = [*(f"--env={name}" for name in names), *(f"--env-module={module}" for module in modules)]
    serve = ["-m", "env_service", "serve", *given, f"--port={port}"]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="agentevolver-eval-") as logs,
            started("env_service", f"{address}/healthz", serve, Path(logs)),
        ):
            async with AsyncEnvClient(address) as client:
                yield client
    except ServiceFailed as error:
        raise LaunchError(str(error)) from error
