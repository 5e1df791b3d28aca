"""OpenAI's SDK with `stream=True`: the reply is put together by the SDK's own accumulator."""

import json

from openai import OpenAI
from world import Episode, play_all


def play(episode: Episode) -> None:
    client = OpenAI(base_url=episode.base_url, api_key=episode.api_key)
    messages = [{"role": "system", "content": episode.rules}, {"role": "user", "content": episode.task}]
    while True:
        asked = {"model": episode.model, "messages": messages, "tools": episode.tools}
        with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
            kinds = {event.type for event in events}
            reply = events.get_final_completion()
        assert reply.usage and reply.usage.completion_tokens > 0, reply
        message = reply.choices[0].message
        assert "tool_calls.function.arguments.done" in kinds or not message.tool_calls, kinds
        calls = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls or []]
        messages.append({"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})})
        if not calls:
            return
        for call in message.tool_calls or []:
            answer = episode.call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})


play_all(play)
