"""pydantic-ai with tools made of JSON schemas."""

from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from world import Episode, play_all


def play(episode: Episode) -> None:
    tools = []
    for tool in episode.tools:
        function = tool["function"]
        invoke = episode.caller(function["name"])
        tools.append(Tool.from_schema(invoke, function["name"], function["description"], function["parameters"]))
    provider = OpenAIProvider(base_url=episode.base_url, api_key=episode.api_key)
    agent = Agent(OpenAIChatModel(episode.model, provider=provider), system_prompt=episode.rules, tools=tools)
    agent.run_sync(episode.task)


play_all(play)
