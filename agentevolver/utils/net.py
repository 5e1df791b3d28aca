"""Ports that neither other launchers nor the kernel take, and settings of loopback."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentevolver.utils.errors import LaunchError

LOOPBACK = "127.0.0.1"
ON_LOOPBACK = {
    # Where Ray expects no cluster (it names Windows and macOS), a node's address is 127.0.0.1, and all its processes
    # listen there. Otherwise Ray (2.60) replaces 127.0.0.1 by the address of a network interface, and most processes
    # listen on all interfaces.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": LOOPBACK,
}
"""Environment variables of a one-machine Ray cluster's processes; they must be set before Ray is imported."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Port of the page, or the first one to try.
LOGVIEW_PORT = 8600
# The kernel hands out ports of the ephemeral range at any moment, and seconds pass between choosing a port and binding
# it: ports are taken outside that range.
# `FIRST` is above the ports that are usually configured by hand.
FIRST = 12_000
ENOUGH = 1_000
# Port -> file descriptor, which stays open because no garbage collection closes it.
_reserved: dict[int, int] = {}


def address_to_bind(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return family and address to bind, IPv4 if the host has one. Raises OSError for an unknown host or port."""
    if port not in range(65536):
        raise OSError(errno.EINVAL, "a port is a number from 0 to 65535")
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from error
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, (address[0], port, *address[2:])


def http_url(value: str) -> str:
    """Return `value`; raises ValueError unless it is an http(s) URL with a host and a possible port."""
    with suppress(ValueError):  # of a port that `urlsplit` refuses
        parts = urlsplit(value)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return value
    raise ValueError("must be http(s)://HOST:PORT/..., with a port from 1 to 65535")


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


def take_url_from(key: str, url: str) -> str:
    """Return the URL of a configuration key with the first free port from its own on. Raises LaunchError."""
    parts = urlsplit(url)
    if (port := take_port_from(parts.port or 80)) is None:
        raise LaunchError(f"no port is free from {key}={url} on; set another one")
    return parts._replace(netloc=f"{parts.netloc.removesuffix(f':{parts.port}')}:{port}").geturl()
