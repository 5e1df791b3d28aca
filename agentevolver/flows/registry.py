"""Agent flows by name: the built-in ones, and a user's own as `package.module:Class`. What cannot be used raises `ConfigError`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import fields

from agentevolver.config.schema import RolloutSettings
from agentevolver.errors import ConfigError
from agentevolver.flows.base import AgentFlow, FlowOptions
from agentevolver.flows.planner_executor import PlannerExecutorFlow
from agentevolver.flows.react import ReactFlow
from agentevolver.types import Task

FLOWS: dict[str, type[AgentFlow]] = {"react": ReactFlow, "planner_executor": PlannerExecutorFlow}


def flow_class(name: str) -> type[AgentFlow]:
    """Return the class behind a name. Raises ConfigError if there is none."""
    if name in FLOWS:
        return FLOWS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"agent_flow = {name}: {error}; write one of {', '.join(FLOWS)}, or package.module:Class") from error
    if not (isinstance(found, type) and issubclass(found, AgentFlow)):
        raise ConfigError(f"agent_flow = {name}: {found!r} is not a subclass of agentevolver.flows.base.AgentFlow")
    return found


def flow_chooser(settings: RolloutSettings) -> Callable[[Task], AgentFlow]:
    """Return what picks a task's flow: the one that its metadata names as `agent_flow`, else the configuration's.

    Raises ConfigError at once for a flow of the configuration that cannot be used or ignores a key that is set, and when it is called
    for one that a task names.
    """
    options = FlowOptions(**{field.name: getattr(settings, field.name) for field in fields(FlowOptions)})
    default = flow_class(settings.agent_flow)
    for field in fields(FlowOptions):
        if getattr(options, field.name) is not None and field.name not in default.reads:
            raise ConfigError(f"actor_rollout_ref.rollout.{field.name} is not read by the flow {settings.agent_flow}: remove it")
    made: dict[str, AgentFlow] = {settings.agent_flow: default(options)}

    def choose(task: Task) -> AgentFlow:
        name = task.metadata.get("agent_flow", settings.agent_flow)
        if name not in made:
            made[name] = flow_class(str(name))(options)
        return made[name]

    return choose
