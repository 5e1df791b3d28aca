"""Native tool calls through the gateway, with the real templates and formats."""

import json

import openai
import pytest

from agentevolver.rollout.gateway import chat, responses
from agentevolver.rollout.tools.formats import tool_format
from context_manager.chat import ChatRenderer
from context_manager.messages import for_template
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, rollout, user
from tests.real_tokenizers import build_real

pytestmark = pytest.mark.service

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "looks up",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "%s"}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen():
    return build_real("qwen2_5")


def ids(tokenizer, *texts):
    return [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts]


@pytest.fixture
def played(qwen):
    engine = ScriptedEngine(ids(qwen, f"Let me see.\n{CALL % 'a'}\n{CALL % 'b'}", CALL % "c", "found"))
    return rollout(ChatRenderer(qwen), engine, tool_format("hermes", qwen))


async def test_the_sdk_calls_tools_and_it_is_one_sample(qwen, played, server):
    endpoint, messages = server.open(played), [user("find it")]
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        for finish in ("tool_calls", "tool_calls", "stop"):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=[SEARCH])
            (choice,) = reply.choices
            assert choice.finish_reason == finish
            messages.append(choice.message.model_dump(exclude_none=True))
            for call in choice.message.tool_calls or []:
                query = json.loads(call.function.arguments)["query"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"nothing of {query}"})
    assert messages[1]["content"] == "Let me see." and [c["id"] for c in messages[1]["tool_calls"]] == [
        "c00001000",
        "c00001001",
    ]
    (sample,) = played.samples()
    shown = qwen.decode([*sample.prompt_ids, *sample.response_ids])
    told = [for_template(message) for message in messages]
    assert shown == qwen.apply_chat_template(told, tools=[SEARCH], tokenize=False).removesuffix("\n")
    assert played.steps[0].observation == "nothing of a\nnothing of b"


async def test_a_stream_has_the_calls_in_one_delta(played, server):
    endpoint = server.open(played)
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.chat.completions.create(
            model="policy", messages=[user("find it")], tools=[SEARCH], **options
        )
        chunks = [chunk async for chunk in stream]
        assert [model.id async for model in client.models.list()] == ["policy"]
    calls = chunks[0].choices[0].delta.tool_calls
    assert [(call.index, call.function.name) for call in calls] == [(0, "search"), (1, "search")]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "tool_calls"]
    assert chunks[-1].usage.completion_tokens == played.steps[0].action_tokens


async def test_without_a_tool_format_tools_are_refused_by_name(qwen, server):
    endpoint = server.open(rollout(ChatRenderer(qwen)))
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        with pytest.raises(openai.BadRequestError, match="tool_format"):
            await client.chat.completions.create(model="policy", messages=[user("go")], tools=[SEARCH])


async def test_responses_call_tools_plain_streamed_and_by_id(qwen, played, server):
    endpoint = server.open(played)
    tools = [{"type": "function", **SEARCH["function"]}]
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        first = await client.responses.create(model="policy", instructions="be brief", input="find it", tools=tools)
        assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
        items = [user("find it"), *(item.model_dump(exclude_none=True) for item in first.output)]
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": "no"} for c in first.output[1:]]
        async with client.responses.stream(model="policy", instructions="be brief", input=items, tools=tools) as stream:
            kinds = [event.type async for event in stream]
            second = await stream.get_final_response()
        assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
        (call,) = second.output
        assert json.loads(call.arguments) == {"query": "c"}
        last = await client.responses.create(
            model="policy",
            instructions="be brief",
            previous_response_id=second.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "yes"}],
            tools=tools,
        )
        assert last.output_text == "found" and last.status == "completed"
        with pytest.raises(openai.BadRequestError, match="no response of this rollout"):
            await client.responses.create(model="policy", previous_response_id="resp_x", input="a")
    assert played.chains == 1 and len(played.samples()) == 1


@pytest.mark.parametrize(
    ("choice", "missed"),
    [
        ({"tool_choice": "none"}, {}),
        ({"tool_choice": "required"}, {"tool_choice": 1}),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, {"tool_choice": 3}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": 1}),
    ],
)
async def test_a_reply_that_does_not_heed_a_choice_is_counted(played, choice, missed):
    for number, calls in enumerate((2, 1, 0)):
        done = await played.complete(chat.read({"messages": [user(f"go {number}")], "tools": [SEARCH], **choice}))
        assert len(done.calls) == (0 if choice.get("tool_choice") == "none" else calls)
    assert played.ignored == missed


async def test_functions_of_a_namespace_are_called_by_their_own_name_again(qwen):
    inner = {"type": "function", "name": "search", "parameters": SEARCH["function"]["parameters"]}
    body = {
        "tools": [{"type": "namespace", "name": "mcp__world", "tools": [inner]}, {**inner, "name": "plain"}],
        "input": [{"role": "user", "content": "find it"}],
    }
    calls = [CALL.replace("search", name) % name for name in ("mcp__world__search", "plain")]
    played = rollout(
        ChatRenderer(qwen), ScriptedEngine(ids(qwen, "\n".join(calls), "well")), tool_format("hermes", qwen)
    )
    done = await played.complete(responses.read(body, played.remembered))
    made = [item for item in responses.reply(done, "1", "m", body)["output"] if item["type"] == "function_call"]
    assert [(item.get("namespace"), item["name"]) for item in made] == [("mcp__world", "search"), (None, "plain")]
    answers = [{"type": "function_call_output", "call_id": item["call_id"], "output": "none"} for item in made]
    await played.complete(responses.read({**body, "input": [*body["input"], *made, *answers]}, played.remembered))
    assert played.chains == 1 and len(played.samples()) == 1
