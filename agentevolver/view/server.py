"""Serves the page until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from urllib.parse import quote

from agentevolver.errors import LaunchError
from agentevolver.utils.ports import LOGVIEW_PORT, port_is_free, take_port_from
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.protocol import Limits
from agentevolver.utils.web.server import Server, server_config
from agentevolver.view.app import MAX_BODY_BYTES, create_app
from agentevolver.view.errors import NotAnExperiment
from agentevolver.view.experiment import Experiment
from agentevolver.view.guard import TOKEN_VARIABLE, page_access

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
    try:
        access = page_access(host, secret(TOKEN_VARIABLE))
    except ValueError as error:
        raise LaunchError(str(error)) from error
    logger.info("watch %s at %s", experiment.name, address(access, chosen))
    app, limits = create_app(experiment, access), Limits(body_bytes=MAX_BODY_BYTES)
    asyncio.run(Server(server_config(app, limits, host=host, port=chosen, log_level="warning", stop_s=STOP_S)).serve())


def address(access: Access, port: int) -> str:
    """Return what to open in a browser."""
    shown = f"[{access.host}]" if ":" in access.host else access.host
    return f"http://{shown}:{port}/" + ("" if access.local else f"?token={quote(access.token, safe='')}")
