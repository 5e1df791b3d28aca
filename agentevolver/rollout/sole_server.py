"""verl's client of the rollout servers, where there is one: it is asked without verl's balancer.

The balancer is an actor that is called twice a turn, to choose among the servers and to hear that a turn is over. Where
there is nothing to choose, that is a tenth of what a turn costs on a CPU.
"""

from __future__ import annotations

from typing import Any

from ray.actor import ActorHandle
from verl.workers.rollout.llm_server import LLMServerClient


class SoleServerClient(LLMServerClient):
    """verl's client with a server that is always the same.

    Args:
        server: its address and its handle.
        arguments: verl's client's.
    """

    def __init__(self, *, server: tuple[str, ActorHandle], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._server = server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, ActorHandle]:
        return self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass


def client_of(manager: Any) -> LLMServerClient:
    """Return the client of a manager of servers (verl's `LLMServerManager`) to which no server is added later; where
    there are several, or a router of the user's own, verl's."""
    servers = list(zip(manager.server_addresses, manager.server_handles, strict=True))
    if len(servers) > 1 or getattr(manager.rollout_config, "router_config_path", None):
        client: LLMServerClient = manager.get_client()
    else:
        client = manager.get_client(client_cls=SoleServerClient, server=servers[0])
    return client
