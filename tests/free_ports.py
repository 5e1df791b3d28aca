"""Ports for the servers of tests."""

from __future__ import annotations

import random

from agentevolver.utils.net import port_is_free, stable_ports


def free_port() -> int:
    """Return a port that nobody listens on, and that the kernel gives to no connection until a server binds it."""
    ports = stable_ports()
    # Drawn from the system: tests that run side by side may have seeded `random` alike.
    while True:
        port = random.SystemRandom().choice(ports)
        if port_is_free(port, "0.0.0.0"):
            return port
