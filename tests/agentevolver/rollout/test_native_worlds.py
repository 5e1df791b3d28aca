"""Worlds of every kind played with native calls by one key: text, a wrong name and a call, each answered."""

import pytest

from agentevolver.rollout.tool_calls import specs_of
from agentevolver.types import StopReason, Task
from env_service.client import AsyncEnvClient
from env_service.registry import known_environments, load, resolve
from tests.agentevolver.rollout.native import LOST, play
from tests.env_service.local_hosts import serving

pytestmark = pytest.mark.service


@pytest.mark.parametrize("name", ["pocket_long", "python", "gymnasium", "bfcl", "calc"])
async def test_a_world_answers_text_and_calls(name):
    task_id = load(known_environments()[name]).get_query_list("train", {})[0]
    async with serving(resolve([name])) as running, AsyncEnvClient(running.url) as client:
        made = await client.create_instance(name, task_id, "probe", {"native_tools": True})
        tool = specs_of(made["info"]["tools"], name)[0]
        await client.release_instance("probe")
        call = f'<tool_call>{{"name": "{tool.name}", "arguments": {{}}}}</tool_call>'
        rollout, _ = await play(client, ["Hello.", LOST, call], task=Task(task_id, name))
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.MAX_STEPS and trajectory.outcome is not None, trajectory.error
    misfit = () if tool.problem({}) is None else ("bad_arguments",)
    assert [(step.calls, step.problems) for step in trajectory.steps] == [(0, ()), (1, ("unknown_tool",)), (1, misfit)]
    assert all(step.observation for step in trajectory.steps) and len(rollout.samples) == 1
