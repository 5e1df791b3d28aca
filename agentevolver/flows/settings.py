"""What can be set of an agent flow: our keys of `actor_rollout_ref.rollout` that flows read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentevolver.utils.names import name_or_spec

AGENT_FLOWS = ("react", "planner_executor")


class FlowSettings(BaseModel):
    """The flow and the keys that only some flows read (their `reads`). Null leaves the choice to the flow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent_flow: str = Field(
        "react", description="how the agent acts: a name or package.module:Class; a task's metadata may name another"
    )
    max_plans: int | None = Field(None, ge=1, description="plans of an episode, the first included; null: 4")

    @field_validator("agent_flow")
    @classmethod
    def _flow(cls, value: str) -> str:
        return name_or_spec(value, AGENT_FLOWS)
