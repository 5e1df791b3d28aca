"""torch's rendezvous store bound to the address that its clients are told, where torch binds it to all interfaces.

Whoever reaches the store can change what the ranks of a group tell one another through it: it asks for nothing.
"""

from __future__ import annotations

import errno
import functools
import socket
from types import ModuleType
from typing import Any


def listening(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens at this address alone; None if one does already, or the address is none of this
    machine's interfaces.

    The latter is how a container is reached whose ports are forwarded: there torch has to listen at all.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        raise


def install(rendezvous: ModuleType) -> None:
    """Have `torch.distributed.rendezvous` bind the stores that it serves to their host."""
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
