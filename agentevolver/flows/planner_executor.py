"""Plan first, then act; plan anew when a step fails.

Plans and actions are all the policy's, in one conversation, and all trained; each is a step of its own (`kind` `plan`
or `action`). The
latest plan is pinned: a context template that shortens the conversation leaves it in sight. Revisions are bounded
    (`max_plans`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from agentevolver.flows.base import AgentFlow, Session
from agentevolver.types import StopReason

PLAN = "First write a plan: a short numbered list of what to do, nothing else. Do not act yet."
GO = "Carry the plan out, one action a message."
REVISE = "This step failed. Write the whole plan for what is left to do anew, nothing else."
MAX_PLANS = 4


class PlannerExecutorFlow(AgentFlow):
    """Asks for a plan, then for actions."""

    reads: ClassVar[frozenset[str]] = frozenset({"max_plans"})

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ask for the plan."""
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{PLAN}"}]

    async def run(self, session: Session) -> StopReason:
        """Take up to `max_steps` actions; plans are not counted among them."""
        revisions = (self.options.max_plans or MAX_PLANS) - 1
        await self._plan(session)
        for left in reversed(range(session.max_steps)):
            answer = await session.act(await session.ask())
            if answer.over:
                return StopReason.FINISHED
            if answer.failed and revisions and left:
                revisions -= 1
                session.tell(REVISE)
                await self._plan(session)
        return StopReason.MAX_STEPS

    @staticmethod
    async def _plan(session: Session) -> None:
        await session.ask("plan")
        session.pin()
        session.tell(GO)
