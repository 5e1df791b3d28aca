"""The environment as the user's agent sees it: native calls in Python and over HTTP, and an MCP server for clients."""

import asyncio
import json

import pytest
from mcp import Client
from openai import AsyncOpenAI

from agentevolver.rollout.engine import Generated
from agentevolver.rollout.gateway.request import RequestRefused
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.rollout.tools.formats import tool_format
from agentevolver.rollout.world import LiveWorld
from agentevolver.rollout.world_routes import routes
from agentevolver.types import StopReason
from env_service.client import EnvServiceError
from tests.agentevolver.rollout.agents import EchoEnv, roll
from tests.real_tokenizers import build_real

pytestmark = pytest.mark.service

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}
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


def test_valid_calls_reach_the_environment_and_others_are_answered_in_their_place():
    env = EchoEnv(length=3)
    live = world(env, [SEARCH])
    message = calling(call(call_id="mine"), call("serch", call_id="b"), call(arguments='{"q": 1}', call_id="c"))
    answer = run(live.step(message))
    assert [(m["tool_call_id"], m["content"][:34]) for m in answer.messages] == [
        ("mine", "ran 0"),
        ("b", "error: there is no tool 'serch'; d"),
        ("c", answer.messages[2]["content"][:34]),
    ]
    assert answer.messages[2]["content"].startswith("error: search: ")
    assert [c["function"]["name"] for c in env.actions[0][1]["tool_calls"]] == ["search"]
    assert live.events[0].tried == 3 and live.events[0].problems == ("unknown_tool", "bad_arguments")


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


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (7, "not a int"),
        ({"content": 7}, "a text or null"),
        ({"content": None, "tool_calls": [{}]}, r"tool_calls\[0\] of the action names no function"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, "must be JSON text"),
        (calling(call()), "takes texts in this run: set actor_rollout_ref.rollout.tool_format"),
    ],
)
def test_what_is_no_action_is_refused(action, message):
    with pytest.raises(ValueError, match=message):
        run(world().step(action))


def test_a_world_that_failed_or_was_closed_takes_nothing():
    error = EnvServiceError("gone", url="/step", instance_id="i")
    live = world(EchoEnv(faults={0: error}))
    for _ in range(2):
        with pytest.raises(EnvServiceError):
            run(live.step("x"))
    assert live.failure is error
    closed = world()
    closed.close()
    with pytest.raises(RuntimeError, match="has ended"):
        run(closed.step("x"))


def test_native_calls_are_played_by_a_function(hermes):
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'

    class Calling:
        async def generate(self, request_id, prompt_ids, sampling_params):
            ids = [*hermes.encode(text, add_special_tokens=False), hermes.eos_token_id]
            return Generated(ids, [-0.5] * len(ids), 1, 1)

    async def agent(task, endpoint, world):
        messages = world.messages
        async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            while True:
                reply = await client.chat.completions.create(model="m", messages=messages, tools=world.tools)
                message = reply.choices[0].message.model_dump(exclude_none=True)
                answer = await world.step(message)
                if answer.over:
                    return
                messages += [message, *answer.messages]

    env = EchoEnv(length=3, info=TOOLS)
    use = ToolUse(tool_format("hermes", hermes))
    rollout = roll(hermes, agent, env, Calling(), tool_use=use)
    trajectory = rollout.trajectory
    assert trajectory.error == "" and trajectory.stop_reason is StopReason.FINISHED
    assert env.created[0]["native_tools"] is True and len(rollout.samples) == 1
    assert [step.calls for step in trajectory.steps] == [1, 1, 1] and trajectory.gateway["chains"] == 1
    assert [step.observation for step in trajectory.steps] == ["ran 0", "ran 1", "ran 2"]
    flow = roll(hermes, None, EchoEnv(length=3, info=TOOLS), Calling(), tool_use=use)
    assert [s.response_ids for s in flow.samples] == [s.response_ids for s in rollout.samples]


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


def test_an_environment_of_texts_is_one_tool(chatml):
    found = []

    async def agent(task, endpoint, world):
        async with Client(f"{endpoint.root_url}/mcp") as client:
            found.append((await client.list_tools()).tools[0].name)
            found.append((await client.call_tool("act", {"action": "go"})).content[0].text)

    rollout = roll(chatml, agent)
    assert found == ["act", "seen 0: go"] and rollout.trajectory.error == ""


async def asked(live, body):
    return await routes(live, lambda _: None)["POST mcp"](body)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (None, -32600),
        ([], -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "other"}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": []}, -32602),
    ],
)
def test_what_is_no_request_of_mcp_is_refused_by_its_code(body, code):
    answer = run(asked(world(), body))
    assert answer["error"]["code"] == code and json.dumps(answer)


def test_an_environment_that_fails_is_an_error_of_its_tool_and_of_its_route():
    live = world(EchoEnv(faults={0: EnvServiceError("gone", url="/step", instance_id="i")}))
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "act", "arguments": {"action": "x"}}}
    assert run(asked(live, body))["result"]["isError"] is True
    with pytest.raises(RequestRefused) as refused:
        run(routes(live, lambda _: None)["POST world/step"]({"action": "x"}))
    assert refused.value.status == 503
