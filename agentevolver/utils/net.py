"""Ports that neither other launchers nor the kernel take, and settings of loopback."""

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
# The kernel hands out ports of the ephemeral range at any moment, and seconds pass between choosing a port and binding
# it: ports are taken outside that range.
# Above what is usually configured by hand.
FIRST = 12_000
ENOUGH = 1_000
# File descriptors, which no collection closes, by port.
_reserved: dict[int, int] = {}


def address_to_bind(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return family and address to bind, IPv4 if the host has one. Raises OSError for an unknown host."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from error
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, (address[0], port, *address[2:])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    try:
        family, address = address_to_bind(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True


def reserve(port: int) -> bool:
    """Keep other launchers off a port until this process ends; False if another launcher holds the port."""
    # An abstract Unix socket: one process of the machine can hold the name, and the kernel frees it at its end.
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
    """Reserve a free port outside the ephemeral range; raises OSError if none is free."""
    candidates = list(stable_ports())
    random.shuffle(candidates)
    for port in candidates:
        if port_is_free(port, "0.0.0.0") and reserve(port):
            return port
    raise OSError(errno.EADDRINUSE, "no port is free: too many programs of this machine listen")


def stable_ports(setting: Path = EPHEMERAL) -> Sequence[int]:
    """Return the ports below the ephemeral range, else above it, else all unprivileged ones."""
    try:
        low, high = (int(text) for text in setting.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    for ports in (range(FIRST, low), range(high + 1, 65536)):
        if len(ports) >= ENOUGH:
            return ports
    return range(FIRST, 65536)


def take_port_from(start: int, tries: int = 64) -> int | None:
    """Reserve the first free port from `start` on; None if `tries` ports are taken."""
    candidates = range(start, min(start + tries, 65536))
    return next((port for port in candidates if port_is_free(port) and reserve(port)), None)
