"""Flows by name, per task if wanted, and keys that a flow does not read."""

import sys

import pytest

from agentevolver.config.checks import load
from agentevolver.config.schema import RolloutSettings
from agentevolver.rollout.flows import (
    AgentFlow,
    PlannerExecutorFlow,
    ReactFlow,
    flow_chooser,
    flow_class,
)
from agentevolver.types import StopReason, Task
from agentevolver.utils.errors import ConfigError


@pytest.fixture(scope="module")
def settings():
    defaults = load(None, ["device=cpu"]).settings.rollout.model_dump()
    return lambda **values: RolloutSettings.model_validate({**defaults, **values})


@pytest.fixture
def own_flow(monkeypatch):
    class Own(AgentFlow):
        async def run(self, session):
            return StopReason.MAX_STEPS

    module = type(sys)("own_flows")
    module.Own = Own
    monkeypatch.setitem(sys.modules, "own_flows", module)
    return Own


def task(**metadata):
    return Task("t", "fake", metadata=metadata)


def test_the_flow_is_the_configurations_unless_the_task_names_one(settings, own_flow):
    choose = flow_chooser(settings())
    assert type(choose(task())) is ReactFlow
    assert type(choose(task(agent_flow="planner_executor"))) is PlannerExecutorFlow
    assert type(choose(task(agent_flow="own_flows:Own"))) is own_flow
    assert choose(task()) is choose(task(agent_flow="react")), "one object serves all episodes"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reakt", "write one of react, planner_executor"),
        ("no.such.module:Flow", "No module named"),
        ("agentevolver.rollout.flows:Nothing", "no attribute 'Nothing'"),
        ("agentevolver.rollout.flows:FlowSettings", "is not a subclass of agentevolver.rollout.flows.AgentFlow"),
    ],
)
def test_a_flow_that_cannot_be_used_says_what_to_write(settings, name, said):
    with pytest.raises(ConfigError, match=said):
        flow_class(name)
    with pytest.raises(ConfigError, match=said):
        flow_chooser(settings())(task(agent_flow=name))
