"""Anthropic's SDK in a plain loop, over /v1/messages."""

from anthropic import Anthropic
from world import Episode, play_all


def play(episode: Episode) -> None:
    client = Anthropic(base_url=episode.base_url.removesuffix("/v1"), api_key=episode.api_key)
    functions = [tool["function"] for tool in episode.tools]
    tools = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]} for one in functions
    ]
    messages = [{"role": "user", "content": episode.task}]
    while True:
        reply = client.messages.create(
            model=episode.model, max_tokens=256, system=episode.rules, messages=messages, tools=tools
        )
        messages.append({"role": "assistant", "content": reply.content})
        calls = [part for part in reply.content if part.type == "tool_use"]
        if not calls:
            return
        answers = [
            {"type": "tool_result", "tool_use_id": call.id, "content": episode.call(call.name, call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": answers})


play_all(play)
