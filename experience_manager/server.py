"""Runs the service until it is told to stop. Says `Uvicorn running on` once it answers, which is what AgentEvolver's
launcher waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import uvicorn
from fastapi import FastAPI

from agentevolver.utils.web.protocol import Limits
from agentevolver.utils.web.server import Server, server_config
from experience_manager.errors import ExperienceError
from experience_manager.service import MAX_BODY_BYTES

# What requests in flight have left once the service is told to stop.
STOP_S = 10


def serve(app: FastAPI, host: str, port: int, *, on_exit: Callable[[], Awaitable[None]]) -> None:
    """Serve until SIGINT or SIGTERM; raises ExperienceError if the port cannot be bound."""
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
    server = Server(server_config(app, Limits(body_bytes=MAX_BODY_BYTES), host=host, port=port, stop_s=STOP_S))
    try:
        asyncio.run(_serve(server, on_exit))
    except SystemExit as error:
        raise ExperienceError(f"{host}:{port} cannot be bound; give another --port") from error


async def _serve(server: uvicorn.Server, on_exit: Callable[[], Awaitable[None]]) -> None:
    try:
        await server.serve()
    finally:
        await on_exit()
