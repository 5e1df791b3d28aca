"""The network of what runs on one machine: loopback, and nothing else."""

from __future__ import annotations

import socket
from typing import Any

LOOPBACK = "127.0.0.1"
ON_LOOPBACK = {
    # Where Ray does not expect a cluster (it says Windows and macOS) a node is at 127.0.0.1, and GCS, raylet, agents,
    # workers and drivers listen there. Elsewhere it takes 127.0.0.1 for a mistake, and at any other address most of
    # them listen on all interfaces.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": LOOPBACK,
}
"""What the processes of a Ray cluster of one machine have in their environment, from before they import Ray."""


def address_to_bind(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return the family of a host's address and what to bind: of IPv4 where the host has such an address, empty for all
    interfaces.

    Raises:
        OSError: no host is called this.
    """
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from error
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, (address[0], port, *address[2:])
