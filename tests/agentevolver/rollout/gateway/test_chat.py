"""OpenAI's SDK against the gateway's chat completions."""

import openai
import pytest

from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, rollout, user

pytestmark = pytest.mark.service


async def test_the_sdk_plain_and_streamed_is_one_sample(renderer, server):
    played = rollout(renderer, ScriptedEngine(["one", "two"]))
    endpoint = server.open(played)
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        first = await client.chat.completions.create(model="policy", messages=[user("task")])
        assert first.choices[0].message.content == "one" and first.choices[0].finish_reason == "stop"
        assert first.usage.completion_tokens == 4
        messages = [user("task"), first.choices[0].message.model_dump(exclude_none=True), user("go on")]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [
            chunk async for chunk in await client.chat.completions.create(model="x", messages=messages, **options)
        ]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "two"
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
        assert chunks[-1].usage.total_tokens > 4
        assert [model.id async for model in client.models.list()] == ["policy"]
        server.close(endpoint)
        with pytest.raises(openai.ConflictError, match="has ended"):
            await client.chat.completions.create(model="policy", messages=messages)
    assert played.chains == 1 and len(played.samples()) == 1
