"""Health checks: one GET with a timeout, and the identity that the server claims.

An unreachable service gives a reason, never an exception.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentevolver import __version__
from agentevolver.utils.processes import RUN_ID
from agentevolver.utils.web.access import is_local

if TYPE_CHECKING:
    import httpx

PROBE_TIMEOUT_S = 3.0
ENVIRONMENTS = "agentevolver environment service"
EXPERIENCE = "agentevolver experience service"
PAGE = "agentevolver page"
PLAYER = "agentevolver player"


@dataclass(frozen=True)
class Health:
    """`reason` is None if the server is well."""

    reason: str | None
    identity: ServiceIdentity | None = None  # a claim: any process of this machine can make it


async def unhealthy(url: str, timeout_s: float = PROBE_TIMEOUT_S, launch_id: str | None = None) -> str | None:
    """Return None if a health URL answers 2xx, else the reason. With `launch_id`, a server of another launch is
    unhealthy."""
    health = await examine(url, timeout_s)
    if (
        launch_id is not None
        and health.reason is None
        and (health.identity is None or health.identity.launch_id != launch_id)
    ):
        return f"another server answers there: {health.identity or 'it does not identify itself'}"
    return health.reason


async def examine(url: str, timeout_s: float = PROBE_TIMEOUT_S) -> Health:
    # Imported here: servers import this module for `health_facts` and need no client.
    import httpx

    # Processes of one machine talk without the environment's proxy.
    async with httpx.AsyncClient(timeout=timeout_s, trust_env=not is_local(url)) as client:
        try:
            response = await client.get(url, headers={"accept": "application/json, */*;q=0.5"})
        except httpx.ConnectError:
            return Health("connection refused")
        except httpx.TimeoutException:
            return Health(f"no answer within {timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Health(f"{type(error).__name__}: {error}")
    body = _json(response)
    identity = read_identity(body)
    if response.is_success:
        return Health(None, identity)
    said = str(body["status"]) if identity is not None and "status" in body else response.text
    return Health(f"HTTP {response.status_code} {' '.join(said.split())[:120]}".rstrip(), identity)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


async def all_unhealthy(
    urls: tuple[str, ...], timeout_s: float = PROBE_TIMEOUT_S, launch_id: str | None = None
) -> str | None:
    """Return the first reason of several health URLs, or None."""
    for url in urls:
        if (reason := await unhealthy(url, timeout_s, launch_id)) is not None:
            return reason
    return None


async def reachable(host: str, port: int, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout_s)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


@dataclass(frozen=True)
class ServiceIdentity:
    name: str
    version: str
    launch_id: str | None  # None if no launcher started the server
    env_types: tuple[str, ...] = ()

    def __str__(self) -> str:
        serves = f" of {', '.join(self.env_types)}" if self.env_types else ""
        return (
            f"{self.name} {self.version}{serves}, started by "
            f"{f'launch {self.launch_id}' if self.launch_id else 'no launcher'}"
        )


def health_facts(name: str, *, env_types: Sequence[str] | None = None, status: str = "ok") -> dict[str, Any]:
    facts = {"status": status, "name": name, "version": __version__, "launch_id": os.environ.get(RUN_ID)}
    return facts if env_types is None else {**facts, "env_types": list(env_types)}


def read_identity(body: object) -> ServiceIdentity | None:
    if not isinstance(body, dict) or not isinstance(body.get("name"), str) or not isinstance(body.get("version"), str):
        return None
    launch_id, env_types = body.get("launch_id"), body.get("env_types", [])
    if not (launch_id is None or isinstance(launch_id, str)) or not isinstance(env_types, list):
        return None
    return ServiceIdentity(body["name"], body["version"], launch_id, tuple(map(str, env_types)))
