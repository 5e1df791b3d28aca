"""Bodies of any kind are answered or refused by name; nothing else is raised."""

import asyncio
import copy
import functools

import orjson
import pytest

from agentevolver.rollout.gateway import chat, messages, responses
from agentevolver.rollout.gateway.request import RequestRefused
from agentevolver.rollout.tools.formats import tool_format
from context_manager.chat import ChatRenderer
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, rollout, user
from tests.agentevolver.rollout.gateway.test_tools import CALL, SEARCH, ids
from tests.real_tokenizers import build_real

_CALLS = [{"id": "c00001000", "type": "function", "function": {"name": "search", "arguments": '{"query": "a"}'}}]
_USES = [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "a"}}]
BODIES = {
    "chat": {
        "model": "policy",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}]},
            user("go"),
            {"role": "assistant", "content": None, "tool_calls": _CALLS, "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c00001000", "name": "search", "content": "no"},
        ],
        "tools": [SEARCH],
        "tool_choice": "auto",
        "max_tokens": 9,
        "stop": ["#"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        "temperature": 0.1,
        "n": 1,
    },
    "responses": {
        "model": "policy",
        "instructions": "a",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "no"},
        ],
        "tools": [{"type": "function", **SEARCH["function"]}],
        "text": {"format": {"type": "text"}},
        "max_output_tokens": 9,
        "stream": False,
        "previous_response_id": None,
    },
    "messages": {
        "model": "policy",
        "system": [{"type": "text", "text": "a"}],
        "messages": [
            user("go"),
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, *_USES]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "no"}, *_USES[:1]]},
        ],
        "tools": [{"name": "search", "input_schema": SEARCH["function"]["parameters"]}],
        "tool_choice": {"type": "auto"},
        "max_tokens": 9,
        "stop_sequences": ["#"],
        "thinking": {"type": "enabled", "budget_tokens": 1},
    },
}


def places(value, path=()):
    """The places of everything within a body."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


def put(body, path, value):
    """A body with another value at a place."""
    found = holder = copy.deepcopy(body)
    if not path:
        return value
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value
    return found


@functools.cache
def qwen():
    return build_real("qwen2_5")


async def answered(api, body):
    """Everything that a server does with a body; true if it was answered."""
    tokenizer = qwen()
    engine = ScriptedEngine(ids(tokenizer, CALL % "a"))
    played = rollout(ChatRenderer(tokenizer), engine, tool_format("hermes", tokenizer))
    try:
        if api == "chat":
            request = chat.read(body)
            done = await played.complete(request)
            orjson.dumps([chat.reply(done, "1", "m"), *chat.events(done, "1", "m", with_usage=request.with_usage)])
        elif api == "responses":
            done = await played.complete(responses.read(body, played.remembered))
            orjson.dumps([responses.reply(done, "1", "m", body), *responses.events(done, "1", "m", body)])
        else:
            request = messages.read(body)
            done = await played.complete(request)
            orjson.dumps(list(messages.events(done, "1", "m", thoughts_apart=request.thoughts_apart)))
    except RequestRefused as refusal:
        assert 400 <= refusal.status < 500 and refusal.text
        return False
    assert len(played.samples()) == 1
    return True


@pytest.mark.parametrize("api", BODIES)
async def test_the_bodies_are_answered(api):
    assert await answered(api, BODIES[api])


ODD = (
    *(None, 1, -1, 1.5, 2**64 - 1, True, False, "", "x", [], [1], [None], ["a"], [[]], [{}], {}, {"a": 1}),
    *({"type": "function"}, {"type": "namespace"}, {"type": "namespace", "name": "a", "tools": [{"name": "b"}]}),
    [{"type": "text", "text": 1}],
)


@pytest.mark.thorough
@pytest.mark.parametrize("api", BODIES)
def test_a_body_with_each_odd_value_in_each_place_is_answered_or_refused(api):
    failed = []
    for path in list(places(BODIES[api]))[1:]:
        for value in ODD:
            try:
                asyncio.run(answered(api, put(BODIES[api], path, value)))
            except Exception as error:
                failed.append((path, value, repr(error)))
    assert not failed
