"""Worker setup hook (`worker_process_setup_hook` of Ray's runtime environment): closes a worker's sockets to strangers
before it imports what it works with.

Ray runs it in each worker of the job before its first task; vLLM's processes, which are not Ray's, run it as they
import verl, which loads our plugin.

torch binds its rendezvous store to all interfaces, without authentication: whoever reaches it can change what the ranks
of a group tell one another. Here it is bound to the address that its clients are told.
"""

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
    """What Ray runs: `close_off`, and variables for libraries (proxies, the hub's address)."""
    close_off()
    # Not in what is cached: a nursery has closed off already what is forked from it, and has no secrets.
    adopt_secrets(LIBRARIES)


@cache
def close_off() -> None:
    """Patch the modules below: at once if they are imported already, else on import."""
    for name, install in (
        ("transfer_queue.utils.zmq_utils", run_key.install_curve),
        ("torch.distributed.rendezvous", bind_to_host),
        (f"{_VLLM_ROLLOUT}.bucketed_weight_transfer", weights.install),
        (f"{_VLLM_ROLLOUT}.vllm_async_server", run_key.install_server_key),
    ):
        wrapt.register_post_import_hook(install, name)


def listening(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens at this address only; None if another one does, or if no interface has the address.

    The latter is how a container with forwarded ports is reached: torch has to listen everywhere then.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        raise


def bind_to_host(rendezvous: ModuleType) -> None:
    """Have `torch.distributed.rendezvous` bind its stores to their host."""
    original = rendezvous.TCPStore

    @functools.wraps(original, updated=())
    def bound(host_name: str, port: int, *args: Any, is_master: bool = False, **kwargs: Any) -> Any:
        server = listening(host_name, port) if is_master else None
        if (
            server is None
        ):  # a client; a second group of this process, which shares the first one's store; a forwarded address
            return original(host_name, port, *args, is_master=is_master, **kwargs)
        own_port = server.getsockname()[1]
        return original(host_name, own_port, *args, is_master=True, master_listen_fd=server.detach(), **kwargs)

    rendezvous.TCPStore = bound  # type: ignore[attr-defined]
