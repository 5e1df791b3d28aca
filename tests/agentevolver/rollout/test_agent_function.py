"""A function of the user's plays rollouts: the tokens of the built-in flow; graded, recorded and stripped as there."""

import asyncio
import json
import threading
import time

import pytest
from openai import OpenAI

from agentevolver.rollout.agent import GRACE_S, Result
from agentevolver.rollout.engine import EngineError
from agentevolver.rollout.pause import PAUSE
from agentevolver.types import Outcome, StopReason, Task, Trajectory
from context_manager.template import ContextLimits
from env_service.client import EnvServiceError
from examples.agents.react import play as react
from experience_manager.guide import Guidance, inject
from tests.agentevolver.rollout.agents import LIMITS, EchoEnv, SeededEngine, ask, roll
from tests.agentevolver.rollout.test_rollout import FakeGraders

pytestmark = pytest.mark.service
SAMPLE = ("prompt_ids", "response_ids", "response_mask", "log_probs", "step_ids", "share", "trajectory_id")


def same(one, other):
    """Assert that two rollouts gave the same samples and the same record but for times."""
    assert [[getattr(s, n) for n in SAMPLE] for s in one.samples] == [
        [getattr(s, n) for n in SAMPLE] for s in other.samples
    ]
    assert one.trajectory.messages == other.trajectory.messages
    assert one.trajectory.stop_reason is other.trajectory.stop_reason
    assert one.trajectory.outcome == other.trajectory.outcome and one.versions == other.versions
    for mine, theirs in zip(one.trajectory.steps, other.trajectory.steps, strict=True):
        for name in ("index", "action", "observation", "reward", "prompt_tokens", "action_tokens", "truncated", "kind"):
            assert getattr(mine, name) == getattr(theirs, name), name


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("agentevolver.rollout.rollout.random.uniform", lambda low, high: 0.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("length", "limits"), [(4, LIMITS), (99, LIMITS), (99, ContextLimits(200, 150, 350, 24, 8))])
def test_the_built_in_flow_as_an_agent_gives_the_same_ids(chatml, seed, length, limits):
    flow = roll(chatml, None, EchoEnv(length), seed=seed, limits=limits)
    agent = roll(chatml, react, EchoEnv(length), seed=seed, limits=limits)
    assert len(flow.samples) == 1 and sum(flow.samples[0].response_mask) > 10
    same(agent, flow)


def test_a_blocking_function_has_a_thread_and_a_blocking_world(chatml):
    def agent(task, endpoint, world):
        assert threading.current_thread() is not threading.main_thread()
        client, messages = OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key), world.messages
        while True:
            action = client.chat.completions.create(model="any", messages=messages).choices[0].message.content
            if (answer := world.step(action)).over:
                return
            messages += [{"role": "assistant", "content": action}, *answer.messages]

    same(roll(chatml, agent), roll(chatml, None))


class SleepyEngine(SeededEngine):
    """An engine that an update puts to sleep before it answers."""

    async def generate(self, request_id, prompt_ids, sampling_params):
        PAUSE.set(asleep=True)
        await asyncio.sleep(1.5)
        PAUSE.set(asleep=False)
        return await super().generate(request_id, prompt_ids, sampling_params)


def test_the_sleep_of_the_engine_is_not_the_agents_time(chatml):
    async def agent(task, endpoint, world):
        await ask(endpoint, world.messages)

    rollout = roll(chatml, agent, engine=SleepyEngine(chatml), serve={"timeout_s": 1.2})
    assert rollout.trajectory.stop_reason is StopReason.FINISHED and len(rollout.samples) == 1


# ---- grades ----


def returning(value):
    async def agent(task, endpoint, world):
        assert world is None and task.query == "go"
        await ask(endpoint, [{"role": "user", "content": task.query}])
        return value

    return agent


@pytest.mark.parametrize(
    ("value", "outcome"), [(True, Outcome(1.0, True)), (Result(0.5, "half"), Outcome(0.5, False, "half"))]
)
def test_without_a_world_the_returned_number_is_the_grade(chatml, value, outcome):
    env = EchoEnv()
    rollout = roll(chatml, returning(value), env, serve={"world": False})
    assert rollout.trajectory.outcome == outcome and rollout.samples and not env.evaluated and not env.open


@pytest.mark.parametrize("value", [None, "1", float("nan"), Result(-1.0)])
def test_what_is_no_grade_is_an_agent_error_and_not_repeated(chatml, value):
    env = EchoEnv()
    rollout = roll(chatml, returning(value), env, serve={"world": False})
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.AGENT_ERROR and trajectory.outcome is None and not rollout.samples
    assert trajectory.attempts == 1 and len(env.created) == 1 and not env.open
    assert "return" in trajectory.error


@pytest.mark.parametrize("world", [True, False])
def test_a_task_that_names_a_grader_is_graded_by_it_without_guidance(chatml, world):
    async def guide(opening):
        return inject(opening, Guidance("be brief", ("e1",)), "[{}] ")

    async def agent(task, endpoint, world):
        await ask(endpoint, [{"role": "system", "content": "mine"}, {"role": "user", "content": task.query}])

    graders = FakeGraders(Outcome(0.5, False, "llm"))
    task = Task("t", "fake", query="do it", evaluator="llm", open_query=True)
    rollout = roll(chatml, agent, task=task, graders=graders, guide=guide, serve={"world": world})
    assert rollout.trajectory.outcome == Outcome(0.5, False, "llm")
    assert graders.messages[0]["content"] == "mine"
    assert graders.asked == [("llm", [rollout.trajectory.steps[0].action], "do it")]
    assert rollout.injection.stripped and "be brief" in rollout.trajectory.messages[1]["content"]


def test_an_agent_that_never_asks_the_policy_has_nothing_to_train_on(chatml):
    async def agent(task, endpoint, world):
        await world.step("by itself")

    rollout = roll(chatml, agent)
    assert rollout.trajectory.outcome is None and not rollout.samples
    validated = roll(chatml, agent, task=Task("t", "fake", metadata={"validation": True}))
    assert validated.trajectory.outcome.score == 0.0


# ---- the record ----


def test_rewards_and_observations_stand_at_the_call_before(chatml):
    async def agent(task, endpoint, world):
        for _ in range(2):
            await ask(endpoint, world.messages)
            await world.step("a")
            await world.step("b")

    trajectory = roll(chatml, agent, EchoEnv(length=9)).trajectory
    assert [(step.reward, step.observation) for step in trajectory.steps] == [
        (0.5, "seen 0: a\nseen 1: b"),
        (0.5, "seen 2: a\nseen 3: b"),
    ]
    assert trajectory.gateway["calls"] == 2 and trajectory.gateway["chains"] == 2
    assert json.loads(json.dumps(trajectory.to_dict()))["gateway"] == trajectory.gateway
    assert Trajectory.from_dict(trajectory.to_dict()) == trajectory


# ---- failures ----


async def raising(task, endpoint, world):
    await ask(endpoint, world.messages)
    raise KeyError("what the user forgot")


def test_an_agent_that_raises_is_an_agent_error_with_its_place(chatml):
    env = EchoEnv()
    rollout = roll(chatml, raising, env)
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.AGENT_ERROR and trajectory.outcome is None and not rollout.samples
    assert "KeyError: 'what the user forgot' (test_agent_function.py:" in trajectory.error
    assert trajectory.attempts == 1 and len(trajectory.steps) == 1 and not env.open and not env.evaluated


@pytest.mark.parametrize("world", [True, False])
def test_agent_errors_are_graded_and_trained_on_where_that_is_wanted(chatml, world):
    rollout = roll(chatml, raising if world else returning("?"), serve={"train_errors": True, "world": world})
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.AGENT_ERROR and len(rollout.samples) == 1
    assert trajectory.outcome.score == (1.0 if world else 0.0) and trajectory.attempts == 1


async def sleeping(task, endpoint, world):
    await ask(endpoint, world.messages)
    await asyncio.sleep(600)


def looping(task, endpoint, world):
    while True:
        time.sleep(0.01)


async def blocking(task, endpoint, world):
    while True:
        time.sleep(0.01)


async def stubborn(task, endpoint, world):
    for _ in range(5):
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            continue


def agent_threads():
    """Return the threads of agents that go on: one that has said its last word needs a moment of the CPU to leave."""
    threads = [thread for thread in threading.enumerate() if thread.name == "agent"]
    for thread in threads:
        thread.join(GRACE_S)
    return [thread for thread in threads if thread.is_alive()]


@pytest.mark.parametrize("agent", [sleeping, looping, blocking])
def test_an_agent_that_hangs_is_ended(chatml, agent):
    env = EchoEnv()
    rollout = roll(chatml, agent, env, serve={"timeout_s": 0.5})
    assert rollout.trajectory.stop_reason is StopReason.AGENT_ERROR
    assert "not end within 0.5 s (actor_rollout_ref.rollout.agent_timeout_s)" in rollout.trajectory.error
    assert not env.open and not agent_threads()


def test_an_agent_that_ignores_its_cancellation_holds_up_nobody(chatml, caplog):
    env, began = EchoEnv(), time.monotonic()
    rollout = roll(chatml, stubborn, env, serve={"timeout_s": 0.3})
    assert rollout.trajectory.stop_reason is StopReason.AGENT_ERROR and not env.open
    assert time.monotonic() - began < 5 and "must not catch CancelledError" in caplog.text


def test_an_outage_of_the_engine_is_repeated_as_it_was(chatml):
    faults = [None, None, *[EngineError("away")] * 3]
    rollout = roll(chatml, react, engine=SeededEngine(chatml, faults))
    assert rollout.trajectory.attempts == 2 and rollout.trajectory.stop_reason is StopReason.FINISHED
    undisturbed = roll(chatml, react)
    assert [s.response_ids for s in rollout.samples] == [s.response_ids for s in undisturbed.samples]


def test_an_environment_that_fails_is_an_env_error_whatever_the_agent_makes_of_it(chatml):
    async def agent(task, endpoint, world):
        await ask(endpoint, world.messages)
        try:
            await world.step("x")
        except Exception:
            return

    env = EchoEnv(faults={"step": [EnvServiceError("gone", url="/step", instance_id="i")] * 2})
    rollout = roll(chatml, agent, env)
    assert rollout.trajectory.stop_reason is StopReason.ENV_ERROR and rollout.trajectory.attempts == 2
    assert not env.open


def test_calls_beyond_the_cap_end_as_max_steps(chatml):
    async def agent(task, endpoint, world):
        while True:
            await ask(endpoint, world.messages)

    rollout = roll(chatml, agent, serve={"max_samples": 2}, max_steps=3)
    assert rollout.trajectory.stop_reason is StopReason.MAX_STEPS and len(rollout.trajectory.steps) == 3
    assert len(rollout.samples) == 2 and rollout.trajectory.dropped_samples == {"over_max_samples": 1}
