"""The environment as the user's agent sees it: native calls in Python and over HTTP, and an MCP server for clients."""

import asyncio
import threading

import pytest
from mcp import Client
from openai import AsyncOpenAI

from agentevolver.rollout.gateway.request import RequestRefused
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.rollout.tools.formats import tool_format
from agentevolver.rollout.world import LiveWorld
from agentevolver.rollout.world_routes import routes
from agentevolver.types import StopReason
from env_service.client import EnvServiceError
from tests.agentevolver.rollout.agents import EchoEnv, roll
from tests.agentevolver.rollout.gateway.test_tools import SEARCH
from tests.real_tokenizers import build_real

pytestmark = pytest.mark.service

TOOLS = {"query": "go", "tools": [SEARCH]}


@pytest.fixture(scope="module")
def hermes():
    return build_real("qwen2_5")


def call(name="search", arguments='{"query": "x"}', call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls):
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def world(env=None, tools=(), max_steps=6):
    env = env or EchoEnv(length=3)
    env.open.add("i")
    return LiveWorld(env, "i", [{"role": "user", "content": "go"}], list(tools), max_steps, lambda t: t[:40], lambda: 0)


def run(coroutine):
    return asyncio.run(coroutine)


async def steps(live, *actions):
    return [await live.step(action) for action in actions]


def test_calls_that_are_all_wrong_cost_an_action_and_reach_no_environment():
    env = EchoEnv(length=3)
    live = world(env, [SEARCH], max_steps=2)
    first, second, third = run(steps(live, *[calling(call(arguments="{"))] * 3))
    assert (first.over, second.over, third.over) == (False, True, True) and env.actions == []
    assert third.messages == [
        {"role": "tool", "tool_call_id": "c1", "name": "search", "content": "The episode is over."}
    ]


def test_observations_are_cut_and_steps_that_come_at_once_wait_for_each_other():
    live = world(EchoEnv(length=9))

    async def at_once():
        return await asyncio.gather(*(live.step("y" * 100) for _ in range(3)))

    answers = run(at_once())
    assert [answer.text for answer in answers] == [f"seen {i}: {'y' * 32}" for i in range(3)]


def test_only_long_observations_are_cut_in_a_thread():
    live, threads = world(EchoEnv(length=9)), []
    live.clip = lambda text: threads.append(threading.current_thread()) or text[:40]
    run(steps(live, "y" * 100, "y" * 100_000))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_a_world_that_failed_or_was_closed_takes_nothing():
    error = EnvServiceError("gone", url="/step", instance_id="i")
    live = world(EchoEnv(faults={"step": [error]}))
    for _ in range(2):
        with pytest.raises(EnvServiceError):
            run(live.step("x"))
    assert live.failure is error
    closed = world()
    closed.close()
    with pytest.raises(RuntimeError, match="has ended"):
        run(closed.step("x"))


# ---- MCP ----


def test_a_client_of_mcp_plays_an_environment(hermes):
    found = {}

    async def agent(task, endpoint, world):
        async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            await client.chat.completions.create(model="m", messages=world.messages)
        async with Client(f"{endpoint.root_url}/mcp") as client:
            found["tools"] = (await client.list_tools()).tools
            found["first"] = await client.call_tool("search", {"query": "x"})
            found["wrong"] = await client.call_tool("search", {"q": "x"})
            found["last"] = await client.call_tool("search", {"query": "y"})
            found["late"] = await client.call_tool("search", {"query": "z"})

    use = ToolUse(tool_format("hermes", hermes))
    rollout = roll(hermes, agent, EchoEnv(length=2, info=TOOLS), tool_use=use)
    assert rollout.trajectory.error == "" and rollout.trajectory.stop_reason is StopReason.FINISHED
    assert [tool.name for tool in found["tools"]] == ["search"]
    assert found["tools"][0].input_schema == SEARCH["function"]["parameters"]
    texts = {name: found[name].content[0].text for name in ("first", "wrong", "last", "late")}
    assert texts["first"] == "ran 0" and texts["last"] == "ran 1" and texts["late"] == "The episode is over."
    assert texts["wrong"].startswith("error: search:")
    assert rollout.trajectory.steps[0].problems == ("bad_arguments",)


async def asked(live, body):
    return await routes(live, lambda _: None)["POST mcp"](body)


def test_an_environment_that_fails_is_an_error_of_its_tool_and_of_its_route():
    live = world(EchoEnv(faults={"step": [EnvServiceError("gone", url="/step", instance_id="i")] * 2}))
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "act", "arguments": {"action": "x"}}}
    assert run(asked(live, body))["result"]["isError"] is True
    with pytest.raises(RequestRefused) as refused:
        run(routes(live, lambda _: None)["POST world/step"]({"action": "x"}))
    assert refused.value.status == 503
