"""Ports that are free, and stay free of other launchers.

Between choosing a port and a service binding it, seconds pass. Launchers that start at the same time keep out of each other's way by
reserving what they choose: an abstract Unix socket named after the port, which the kernel gives to one process of the machine and
takes back when that process ends.
"""

from __future__ import annotations

import errno
import socket

_reserved: dict[int, socket.socket] = {}


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
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
    """Reserve and return a port that nobody uses now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if reserve(port):
            return port


def take_port_from(start: int, tries: int = 64) -> int | None:
    """Reserve and return the first free port from `start` on; None if none is free within `tries`."""
    candidates = range(start, min(start + tries, 65536))
    return next((port for port in candidates if port_is_free(port) and reserve(port)), None)
