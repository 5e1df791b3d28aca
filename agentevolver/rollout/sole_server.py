"""verl's client for a single rollout server, without verl's load balancer."""

from __future__ import annotations

from typing import Any

from ray.actor import ActorHandle
from verl.workers.rollout.llm_server import LLMServerClient


class SoleServerClient(LLMServerClient):
    """verl's client with one fixed server (address and handle)."""

    def __init__(self, *, server: tuple[str, ActorHandle], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._server = server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, ActorHandle]:
        # The balancer is a Ray actor that is called twice a turn, a tenth of a turn's CPU time. One server needs no
        # balancing.
        return self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass


def client_of(manager: Any) -> LLMServerClient:
    """Return the client of verl's `LLMServerManager`: verl's own with several servers or a custom router."""
    servers = list(zip(manager.server_addresses, manager.server_handles, strict=True))
    if len(servers) > 1 or getattr(manager.rollout_config, "router_config_path", None):
        client: LLMServerClient = manager.get_client()
    else:
        client = manager.get_client(client_cls=SoleServerClient, server=servers[0])
    return client
