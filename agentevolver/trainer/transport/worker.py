"""Worker setup hook of Ray's runtime environment: restricts a worker's sockets before its libraries are imported."""

from __future__ import annotations

import errno
import functools
import socket
from functools import cache
from types import ModuleType
from typing import Any

import wrapt

from agentevolver.trainer.transport import weights
from agentevolver.utils import run_key
from agentevolver.utils.secrets import LIBRARIES, adopt_secrets

HOOK = f"{__name__}.begin"
_VLLM_ROLLOUT = "verl.workers.rollout.vllm_rollout"


def begin() -> None:
    """The hook that Ray calls in each worker before its first task."""
    close_off()
    # Outside of the cached `close_off`: forks of a fork server inherit its patches, but the server has no secrets.
    adopt_secrets(LIBRARIES)


@cache
def close_off() -> None:
    """Patch the modules below now if they are imported, else on import."""
    # vLLM's processes, which Ray does not start, reach this when they import verl, which loads our plugin.
    for name, install in (
        ("transfer_queue.utils.zmq_utils", run_key.install_curve),
        ("torch.distributed.rendezvous", bind_to_host),
        (f"{_VLLM_ROLLOUT}.bucketed_weight_transfer", weights.install),
        (f"{_VLLM_ROLLOUT}.vllm_async_server", run_key.install_server_key),
    ):
        wrapt.register_post_import_hook(install, name)


def listening(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens at this address only, or None if it is in use or belongs to no interface."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        # No interface has the address of a container with forwarded ports; torch must listen on all interfaces then.
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        raise


def bind_to_host(rendezvous: ModuleType) -> None:
    """Make `torch.distributed.rendezvous` bind its stores to their host."""
    # torch binds its store to all interfaces without authentication: anyone who reaches it can change what the ranks
    # exchange.
    original = rendezvous.TCPStore

    @functools.wraps(original, updated=())
    def bound(host_name: str, port: int, *args: Any, is_master: bool = False, **kwargs: Any) -> Any:
        server = listening(host_name, port) if is_master else None
        if server is None:  # a client, a second group of this process (which shares the store), or a forwarded address
            return original(host_name, port, *args, is_master=is_master, **kwargs)
        own_port = server.getsockname()[1]
        return original(host_name, own_port, *args, is_master=True, master_listen_fd=server.detach(), **kwargs)

    rendezvous.TCPStore = bound  # type: ignore[attr-defined]
