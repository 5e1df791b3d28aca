"""What the built-in flows ask of the policy, and when they stop."""

import pytest

from agentevolver.rollout.flows import (
    GO,
    MAX_PLANS,
    PLAN,
    REVISE,
    FlowSettings,
    PlannerExecutorFlow,
    ReactFlow,
    flow_chooser,
)
from agentevolver.types import StopReason, Task
from context_manager.template import ContextLimits
from tests.agentevolver.rollout.flows.harness import TASK, ScriptedEnv, play

TIGHT = ContextLimits(600, 700, 1_300, 48, 60)


class EndingEnv(ScriptedEnv):
    """Ends the episode with the last of its observations."""

    async def step(self, *arguments, **keywords):
        result = await super().step(*arguments, **keywords)
        return {**result, "is_terminated": len(self.given) == len(self.observations)}


def run(chatml, flow, replies, observations, env=ScriptedEnv, template="causal", **more):
    ids = [[*chatml.encode(text), chatml.tokenizer.eos_token_id] for text in replies]
    return play(chatml, template, flow, ids, observations, env=env(observations), **more)


def kinds(played):
    return [step.kind for step in played.rollout.trajectory.steps]


def prompts(played, chatml):
    return [chatml.tokenizer.decode(prompt) for prompt, _, _ in played.engine.calls]


def test_a_plan_comes_first_and_is_no_action(chatml):
    played = run(chatml, "planner_executor", ["1. look", "look", "take"], [("user", "seen", False)] * 2, EndingEnv)
    assert played.rollout.trajectory.stop_reason is StopReason.FINISHED
    assert kinds(played) == ["plan", "action", "action"] and played.env.given == ["look", "take"]
    first, second, third = prompts(played, chatml)
    assert PLAN in first and GO not in first
    assert "1. look" in second and GO in second and "1. look" in third
    assert [step.observation for step in played.rollout.trajectory.steps] == ["", "seen", "seen"]


def test_a_failed_step_is_followed_by_a_plan_for_what_is_left(chatml):
    observations = [("user", "seen", False), ("user", "no such thing", True), ("user", "seen", False)]
    played = run(chatml, "planner_executor", ["old plan", "a", "b", "new plan", "c"], observations, EndingEnv)
    assert kinds(played) == ["plan", "action", "action", "plan", "action"]
    assert played.env.given == ["a", "b", "c"]
    assert REVISE in prompts(played, chatml)[3] and REVISE not in prompts(played, chatml)[2]


def test_plans_are_bounded_however_often_steps_fail(chatml):
    played = run(chatml, "planner_executor", ["x"], [("user", "error: no", False)], max_steps=9)
    assert kinds(played).count("plan") == MAX_PLANS and kinds(played).count("action") == 9


@pytest.mark.parametrize(
    ("template", "limits"), [("sliding_window", TIGHT), ("self_managed", ContextLimits(900, 900, 1_800, 48, 60))]
)
def test_the_latest_plan_stays_in_sight_when_the_context_is_shortened(chatml, template, limits):
    observations = [*[("user", "o" * 60, False)] * 5, ("user", "err gone", True), *[("user", "o" * 60, False)] * 14]
    replies = [f"say{number:03}" for number in range(80)]
    played = run(chatml, "planner_executor", replies, observations, template=template, limits=limits, max_steps=20)
    steps = played.rollout.trajectory.steps
    assert kinds(played).count("action") == 20 and played.rollout.trajectory.context_edits, "shortened on the way"
    old, new = [step.action for step in steps if step.kind == "plan"]
    seen = [prompt for prompt, step in zip(prompts(played, chatml), steps, strict=True) if step.kind == "action"]
    assert all(old in prompt for prompt in seen[:6]) and all(new in prompt for prompt in seen[6:])
    assert old not in seen[-1], "the plan before it may go"


def test_the_flow_is_the_configurations_unless_the_task_names_one():
    choose = flow_chooser(FlowSettings())
    planner = Task("t", "fake", metadata={"agent_flow": "agentevolver.rollout.flows:PlannerExecutorFlow"})
    assert type(choose(TASK)) is ReactFlow and type(choose(planner)) is PlannerExecutorFlow
    assert choose(planner) is choose(planner), "one object serves all episodes"
