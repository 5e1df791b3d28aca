"""Agent flows by name: the built-in ones, and a user's own as `package.module:Class`. What cannot be used raises
`ConfigError`."""

from __future__ import annotations

from collections.abc import Callable

from agentevolver.errors import ConfigError
from agentevolver.flows.base import AgentFlow
from agentevolver.flows.planner_executor import PlannerExecutorFlow
from agentevolver.flows.react import ReactFlow
from agentevolver.flows.settings import FlowSettings
from agentevolver.types import Task
from agentevolver.utils.names import load_class

FLOWS: dict[str, type[AgentFlow]] = {"react": ReactFlow, "planner_executor": PlannerExecutorFlow}


def flow_class(name: str) -> type[AgentFlow]:
    """Return the class behind a name. Raises ConfigError if there is none."""
    if name in FLOWS:
        return FLOWS[name]
    try:
        return load_class(name, AgentFlow, tuple(FLOWS))
    except ValueError as error:
        raise ConfigError(f"agent_flow = {name}: {error}") from error


def checked_flow(settings: FlowSettings) -> type[AgentFlow]:
    """Return the flow of a configuration. Raises ConfigError if there is none, or for a key that is set and that it
    does not read."""
    flow = flow_class(settings.agent_flow)
    for key in FlowSettings.model_fields:
        if getattr(settings, key) is None or key == "agent_flow" or key in flow.reads:
            continue
        readers = " and ".join(name for name, other in FLOWS.items() if key in other.reads)
        raise ConfigError(
            f"actor_rollout_ref.rollout.{key} is read by {readers} alone, agent_flow is {settings.agent_flow}: "
            "remove the key, or choose another"
        )
    return flow


def flow_chooser(settings: FlowSettings) -> Callable[[Task], AgentFlow]:
    """Return what picks a task's flow: the one that its metadata names as `agent_flow`, else the configuration's.

    Raises ConfigError at once for a flow of the configuration that cannot be used or ignores a key that is set, and
    when it is called for one that a task names.
    """
    made: dict[str, AgentFlow] = {settings.agent_flow: checked_flow(settings)(settings)}

    def choose(task: Task) -> AgentFlow:
        name = task.metadata.get("agent_flow", settings.agent_flow)
        if name not in made:
            made[name] = flow_class(str(name))(settings)
        return made[name]

    return choose
