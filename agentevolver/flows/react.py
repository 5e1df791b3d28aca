"""The default flow: one call of the policy, one action, one observation, until the episode ends."""

from __future__ import annotations

from agentevolver.flows.base import AgentFlow, Session
from agentevolver.types import StopReason


class ReactFlow(AgentFlow):
    """Every reply is an action."""

    async def run(self, session: Session) -> StopReason:
        """Take up to `max_steps` actions."""
        for _ in range(session.max_steps):
            answer = await session.act(await session.ask())
            if answer.over:
                return StopReason.FINISHED
        return StopReason.MAX_STEPS
