"""An environment and a flow that write down on which node they work: lines of `<host name> <what>` in the file of the
variable ON_NODES, which all nodes see."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from agentevolver.rollout.flows import ReactFlow
from agentevolver.types import StopReason
from env_service.environments.pocket.env import PocketEnv

WHERE = "ON_NODES"
ENVIRONMENT, ROLLOUT = "environment", "rollout"


def note(what: str) -> None:
    """Append a line."""
    with open(os.environ[WHERE], "a", encoding="utf-8") as file:
        file.write(f"{socket.gethostname()} {what} {time.monotonic():.0f}\n")


class NotedPocket(PocketEnv):
    """PocketWorld that notes where each instance is."""

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        note(ENVIRONMENT)


class NotedFlow(ReactFlow):
    """Every reply is an action; notes where each episode is played."""

    async def run(self, session: Any) -> StopReason:
        """Note it, and play."""
        note(ROLLOUT)
        return await super().run(session)
