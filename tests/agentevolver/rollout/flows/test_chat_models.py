"""Flows outside training: any OpenAI-compatible endpoint in the policy's place, over real HTTP on loopback."""

import pytest

from agentevolver.llm import LLM, LLMSettings, Role
from agentevolver.rollout.policy import LLMEngine, plain_renderer
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.types import StopReason, Task
from context_manager.registry import TEMPLATES
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits
from tests.agentevolver.llm.faulty_server import FaultyServer, Said, hurry
from tests.agentevolver.rollout.flows.harness import FLOWS, ScriptedEnv
from tests.agentevolver.rollout.native import NativeEnv

pytestmark = pytest.mark.service

LIMITS = ContextLimits(
    max_prompt_tokens=400, max_response_tokens=400, max_model_len=800, max_new_tokens=60, max_observation_tokens=60
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    hurry(monkeypatch)


def settings(server, **values):
    return LLMSettings.model_validate(
        {"base_url": server.url, "model": "m", "api_key_env": None, "timeout_s": 5.0, "tries": 2, **values}
    )


async def roll(
    llm, template="causal", flow="react", *, options=None, steps=4, env=None, sampling=None, limits=LIMITS, **more
):
    env = env or ScriptedEnv([("user", "o" * 200, False), ("user", "err no", True)])
    runner = RolloutRunner(
        RolloutPolicy(steps, 1, True, 0.0),
        env,
        LLMEngine(llm, Role.EXPLORER),
        lambda: TEMPLATES[template](plain_renderer(), limits, options or ContextSettings()),
        lambda task: FLOWS[flow],
        **more,
    )
    return await runner.run(Task("t", "fake"), "g", 0, sampling or {}, {}), env


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_every_template_and_flow_runs_with_a_chat_model(template, flow):
    answer = "<think>hm</think>act" if template == "reasoning" else "act"
    async with FaultyServer(lambda number, body: Said(answer)) as server, LLM(settings(server)) as llm:
        rollout, env = await roll(llm, template, flow, steps=12)
    trajectory = rollout.trajectory
    assert rollout.samples == [] and trajectory.outcome.score == 1.0
    if template in ("sliding_window", "self_managed"):
        assert trajectory.stop_reason is StopReason.MAX_STEPS and len(env.given) == 12
    assert [step.kind for step in trajectory.steps].count("action") == len(env.given)
    assert set(env.given) == {"act"}
    assert len(server.requests) == len(trajectory.steps), "each call of the model is a step"
    for request in server.requests:
        text = "".join(message["content"] for message in request.body["messages"])
        assert len(text) / 4 <= LIMITS.max_model_len, "the limits hold, at about four characters a token"
        assert request.body["max_tokens"] <= LIMITS.max_new_tokens
        assert template != "reasoning" or "hm" not in text


async def test_the_model_is_sent_the_conversation_as_chat_messages():
    env = ScriptedEnv([("tool", "seen", False)])
    async with FaultyServer([Said("cut", finish_reason="length"), Said("act")]) as server, LLM(settings(server)) as llm:
        rollout, _ = await roll(llm, steps=2, env=env, sampling={"temperature": 0.3})
    sent = [(message["role"], message["content"]) for message in server.requests[1].body["messages"]]
    assert sent == [("system", "s"), ("user", "go"), ("assistant", "cut"), ("tool", "seen")]
    assert [step.truncated for step in rollout.trajectory.steps] == [True, False] and env.given == ["cut", "act"]
    assert server.requests[0].body["temperature"] == 0.3
    assert [request.body["seed"] for request in server.requests] == [1, 2]


@pytest.mark.parametrize("fault", [Said(status=500), Said(text=""), Said(text="", finish_reason="length")])
async def test_whatever_an_endpoint_does_wrong_fails_the_attempt_by_name(fault):
    async with FaultyServer([fault]) as server, LLM(settings(server)) as llm:
        rollout, env = await roll(llm)
    assert rollout.trajectory.stop_reason is StopReason.LLM_ERROR and rollout.trajectory.outcome is None
    assert rollout.trajectory.error.startswith("explorer: LLM") and env.given == []


def calling(name, arguments):
    function = {"name": name, "arguments": arguments}
    return Said(
        None,
        finish_reason="tool_calls",
        message={"tool_calls": [{"id": "x1", "type": "function", "function": function}]},
    )


@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_model_that_calls_tools_natively_is_answered_under_the_ids_of_its_calls(template):
    script = [calling("look", '{"place": "attic"}'), calling("lok", "{}"), calling("look", "{"), calling("done", "{}")]
    env = NativeEnv()
    limits = ContextLimits(1_000, 2_000, 3_000, 60, 60)
    async with FaultyServer(script) as server, LLM(settings(server)) as llm:
        rollout, _ = await roll(llm, template, env=env, limits=limits, tool_use=ToolUse(None))
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.FINISHED, trajectory.error
    assert [step.problems for step in trajectory.steps] == [(), ("unknown_tool",), ("bad_json",), ()]
    assert len(env.given) == 2 and rollout.samples == []
    names = [tool["function"]["name"] for request in server.requests for tool in request.body["tools"]]
    assert names == ["look", "done"] * 4
    *_, said, answer = server.requests[1].body["messages"]
    assert said["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"place": "attic"}'}
    assert answer["role"] == "tool" and answer["tool_call_id"] == said["tool_calls"][0]["id"]
