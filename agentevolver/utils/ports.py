"""Ports that are free, and stay free of other launchers and of the kernel.

The kernel gives ports of the ephemeral range to connections and to servers that ask for any, at any moment; ports are
taken below it. Between choosing a port and a service binding it, seconds pass. Launchers that start at the same time
keep out of each other's way by
reserving what they choose: an abstract Unix socket named after the port, which the kernel gives to one process of the
    machine and
takes back when that process ends.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from agentevolver.errors import LaunchError
from agentevolver.utils.net import address_to_bind

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Where the page is, or the next free one above it.
LOGVIEW_PORT = 8600
# Above what is usually configured by hand.
FIRST = 12_000
ENOUGH = 1_000
_reserved: dict[int, socket.socket] = {}


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind there now; nowhere if no host is called this, or this machine lacks the address's
    family."""
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
    _reserved[port] = holder
    return True


def take_any_port() -> int:
    """Reserve and return a port that nobody uses now on any interface, outside of the ephemeral range.

    Raises:
        LaunchError: there is none.
    """
    candidates = list(stable_ports())
    random.shuffle(candidates)
    for port in candidates:
        if port_is_free(port, "0.0.0.0") and reserve(port):
            return port
    raise LaunchError("no port is free: too many programs of this machine listen")


def stable_ports(setting: Path = EPHEMERAL) -> Sequence[int]:
    """Return ports that the kernel gives nobody by itself: below the ephemeral range, else above it, else all without a
    privilege."""
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
