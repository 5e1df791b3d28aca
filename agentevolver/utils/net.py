"""Addresses and ports of this machine: loopback, and ports that stay free of other launchers and of the kernel.

The kernel gives ports of the ephemeral range to connections and to servers that ask for any, at any moment; ports are
taken below it. Between choosing a port and a service binding it, seconds pass. Launchers that start at the same time
keep out of each other's way by reserving what they choose: an abstract Unix socket named after the port, which the
kernel gives to one process of the machine and takes back when that process ends.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Sequence
from pathlib import Path
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
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Where the page is, or the next free one above it.
LOGVIEW_PORT = 8600
# Above what is usually configured by hand.
FIRST = 12_000
ENOUGH = 1_000
# File descriptors, which no collection closes, by port.
_reserved: dict[int, int] = {}


def address_to_bind(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return the family of a host's address and what to bind:
    of IPv4 where the host has such an address, empty for all interfaces.

    Raises:
        OSError: no host is called this.
    """
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from error
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, (address[0], port, *address[2:])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind there now; nowhere if no host is called this,
    or this machine lacks the address's family."""
    try:
        family, address = address_to_bind(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True


def reserve(port: int) -> bool:
    """Keep other launchers off a port until this process ends; False if one of them has it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0agentevolver-port-{port}")
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    _reserved[port] = holder.detach()
    return True


def take_any_port() -> int:
    """Reserve and return a port that nobody uses now on any interface, outside of the ephemeral range.

    Raises:
        OSError: there is none.
    """
    candidates = list(stable_ports())
    random.shuffle(candidates)
    for port in candidates:
        if port_is_free(port, "0.0.0.0") and reserve(port):
            return port
    raise OSError(errno.EADDRINUSE, "no port is free: too many programs of this machine listen")


def stable_ports(setting: Path = EPHEMERAL) -> Sequence[int]:
    """Return ports that the kernel gives nobody by itself:
    below the ephemeral range, else above it, else all without a privilege."""
    try:
        low, high = (int(text) for text in setting.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    for ports in (range(FIRST, low), range(high + 1, 65536)):
        if len(ports) >= ENOUGH:
            return ports
    return range(FIRST, 65536)


def take_port_from(start: int, tries: int = 64) -> int | None:
    """Reserve and return the first free port from `start` on; None if none is free within `tries`."""
    candidates = range(start, min(start + tries, 65536))
    return next((port for port in candidates if port_is_free(port) and reserve(port)), None)
