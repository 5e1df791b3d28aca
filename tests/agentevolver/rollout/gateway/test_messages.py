"""Anthropic's SDK against the gateway."""

import anthropic
import pytest

from agentevolver.rollout.tools.formats import tool_format
from context_manager.chat import ChatRenderer
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, failing, rollout, user
from tests.agentevolver.rollout.gateway.test_tools import CALL, SEARCH, ids
from tests.real_tokenizers import build_real

pytestmark = pytest.mark.service

TOOL = {"name": "search", "description": "looks up", "input_schema": SEARCH["function"]["parameters"]}
OPTIONS = {"model": "policy", "max_tokens": 200, "system": "be brief", "tools": [TOOL]}


def client_of(endpoint, **options):
    return anthropic.AsyncAnthropic(base_url=endpoint.root_url, api_key=endpoint.api_key, **options)


async def test_the_sdk_plain_and_streamed_is_one_sample(server):
    qwen = build_real("qwen2_5")
    replies = ids(qwen, f"Let me see.\n{CALL % 'a'}\n{CALL % 'b'}", CALL % "c", "found # that")
    played = rollout(ChatRenderer(qwen), ScriptedEngine(replies), tool_format("hermes", qwen))
    messages = [user("find it")]
    async with client_of(server.open(played)) as client:
        first = await client.messages.create(messages=messages, **OPTIONS)
        assert first.stop_reason == "tool_use" and first.content[0].text == "Let me see."
        assert [block.input for block in first.content[1:]] == [{"query": "a"}, {"query": "b"}]
        messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
        answers = [{"type": "tool_result", "tool_use_id": block.id, "content": "no"} for block in first.content[1:]]
        messages.append({"role": "user", "content": [*answers, {"type": "text", "text": "go on"}]})
        async with client.messages.stream(messages=messages, **OPTIONS) as stream:
            kinds = [event.type async for event in stream]
            second = await stream.get_final_message()
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
        (block,) = second.content
        assert block.input == {"query": "c"} and second.usage.output_tokens == played.steps[1].action_tokens
        messages.append({"role": "assistant", "content": [block.model_dump()]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": []}]})
        counted = await client.messages.count_tokens(messages=messages, model="policy", system="be brief", tools=[TOOL])
        last = await client.messages.create(messages=messages, stop_sequences=["#"], **OPTIONS)
        assert (last.content[0].text, last.stop_reason, last.stop_sequence) == ("found ", "stop_sequence", "#")
        assert last.usage.input_tokens == counted.input_tokens
    assert played.chains == 1 and len(played.samples()) == 1
    assert [step.observation for step in played.steps] == ["no\nno\ngo on", "", ""]


async def test_thoughts_are_blocks_where_they_are_asked_for(renderer, server):
    played = rollout(renderer, ScriptedEngine(["<think>hm</think>\n\nyes"]))
    async with client_of(server.open(played)) as client:
        options = {"model": "policy", "max_tokens": 2000, "messages": [user("go")]}
        apart = await client.messages.create(thinking={"type": "enabled", "budget_tokens": 1024}, **options)
        whole = await client.messages.create(**options)
        again = [user("go"), {"role": "assistant", "content": [b.model_dump() for b in apart.content]}, user("on")]
        await client.messages.create(**{**options, "messages": again})
    assert [block.type for block in apart.content] == ["thinking", "text"] and apart.content[0].thinking == "hm"
    assert whole.content[0].text == "<think>hm</think>\n\nyes"
    assert played.chains == 2  # the second call asked the same again, the third goes on from the first


async def test_errors_have_anthropics_form(renderer, server):
    played = rollout(renderer, failing(1))
    endpoint = server.open(played)
    async with client_of(endpoint, max_retries=0) as client:
        options = {"model": "policy", "max_tokens": 20}
        with pytest.raises(anthropic.APIStatusError) as failed:
            await client.messages.create(messages=[user("go")], **options)
        assert failed.value.status_code == 503 and failed.value.body["error"]["type"] == "overloaded_error"
        assert failed.value.response.headers["retry-after"] == "1"
        image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        with pytest.raises(anthropic.BadRequestError, match="'image' is not supported"):
            await client.messages.create(messages=[{"role": "user", "content": [image]}], **options)
        with pytest.raises(anthropic.BadRequestError, match="prefill"):
            await client.messages.create(messages=[user("go"), {"role": "assistant", "content": "I"}], **options)
