"""Is it up? One GET, answered or refused within seconds; never an exception for a service that is not there (yet)."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import httpx

from agentevolver.utils.web.access import is_loopback

PROBE_TIMEOUT_S = 3.0


async def unhealthy(url: str, timeout_s: float = PROBE_TIMEOUT_S) -> str | None:
    """Ask a health URL; returns None if it answers 2xx, else the reason in a few words."""
    # A proxy set for the outside world must not stand between processes of one machine.
    async with httpx.AsyncClient(timeout=timeout_s, trust_env=not is_loopback(urlsplit(url).hostname or "")) as client:
        try:
            response = await client.get(url)
        except httpx.ConnectError:
            return "connection refused"
        except httpx.TimeoutException:
            return f"no answer within {timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"
    if response.is_success:
        return None
    return f"HTTP {response.status_code} {' '.join(response.text.split())[:120]}".rstrip()


async def all_unhealthy(urls: tuple[str, ...], timeout_s: float = PROBE_TIMEOUT_S) -> str | None:
    """Ask several health URLs; returns the first reason, None if all are well."""
    for url in urls:
        if (reason := await unhealthy(url, timeout_s)) is not None:
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
