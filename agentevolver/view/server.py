"""Serves the page until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import uvicorn

from agentevolver.launcher.errors import LaunchError
from agentevolver.launcher.ports import port_is_free, take_port_from
from agentevolver.launcher.stack import LOGVIEW_PORT
from agentevolver.serving import Server
from agentevolver.utils.secrets import secret
from agentevolver.view.app import create_app
from agentevolver.view.errors import NotAnExperiment
from agentevolver.view.experiment import Experiment
from agentevolver.view.guard import TOKEN_VARIABLE, Guard

logger = logging.getLogger("agentevolver.launcher.view")

HOST = "127.0.0.1"
# What requests in flight have left once the server is told to stop.
STOP_S = 2


def view(folder: Path, host: str = HOST, port: int | None = None) -> None:
    """Serve the page of a run until SIGINT or SIGTERM.

    Args:
        folder: the run's.
        host: the address to bind; beyond loopback the page asks for a token.
        port: None takes the first free one from `LOGVIEW_PORT` on.

    Raises:
        LaunchError: the folder is no run's, or the port is taken.
    """
    try:
        experiment = Experiment(folder)
    except NotAnExperiment as error:
        raise LaunchError(str(error)) from error
    chosen = take_port_from(LOGVIEW_PORT) if port is None else port
    if chosen is None or (port is not None and not port_is_free(port, host)):
        raise LaunchError(f"port {port or LOGVIEW_PORT} is taken; give another one with --port")
    guard = Guard(host, secret(TOKEN_VARIABLE))
    logger.info("watch %s at %s", experiment.name, address(guard, host, chosen))
    config = uvicorn.Config(
        create_app(experiment, guard), host=host, port=chosen, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_S
    )
    asyncio.run(Server(config).serve())


def address(guard: Guard, host: str, port: int) -> str:
    """Return what to open in a browser."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={guard.token}" if guard.needs_login else "")
