"""Is it up? One GET, answered or refused within seconds; never an exception for a service that is not there (yet)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentevolver.utils.identity import ServiceIdentity, read_identity
from agentevolver.utils.web.access import is_loopback

PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Health:
    """What a health URL answers: why it is not well, None if it is, and who it says that it is, if it says so."""

    reason: str | None
    identity: ServiceIdentity | None = None


async def unhealthy(url: str, timeout_s: float = PROBE_TIMEOUT_S, launch_id: str | None = None) -> str | None:
    """Ask a health URL; returns None if it answers 2xx, else the reason in a few words.

    With `launch_id`, one that does not say that this launch has started it is none of ours, however well it is.
    """
    health = await examine(url, timeout_s)
    if (
        launch_id is not None
        and health.reason is None
        and (health.identity is None or health.identity.launch_id != launch_id)
    ):
        return f"somebody else answers there: {health.identity or 'it does not say who it is'}"
    return health.reason


async def examine(url: str, timeout_s: float = PROBE_TIMEOUT_S) -> Health:
    """Ask a health URL how it is, and who."""
    # A proxy set for the outside world must not stand between processes of one machine.
    async with httpx.AsyncClient(timeout=timeout_s, trust_env=not is_loopback(urlsplit(url).hostname or "")) as client:
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
    """Ask several health URLs; returns the first reason, None if all are well (and of this launch, if one is given)."""
    for url in urls:
        if (reason := await unhealthy(url, timeout_s, launch_id)) is not None:
            return reason
    return None


async def reachable(host: str, port: int, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether something accepts TCP connections there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout_s)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
