"""OpenAI's SDK in a plain loop: ask, carry out what is called, until nothing is."""

import json

from openai import OpenAI
from world import Episode, play_all


def play(episode: Episode) -> None:
    client = OpenAI(base_url=episode.base_url, api_key=episode.api_key)
    messages = [{"role": "system", "content": episode.rules}, {"role": "user", "content": episode.task}]
    while True:
        reply = client.chat.completions.create(model=episode.model, messages=messages, tools=episode.tools)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            answer = episode.call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})


play_all(play)
