"""openai-agents, with its default (the Responses API) or with chat completions: `openai_agents.py responses | chat`."""

import asyncio
import json
import sys

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
from world import Episode, play_all

MODEL = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}[sys.argv[1]]


def tool_of(episode: Episode, function: dict) -> FunctionTool:
    async def invoke(context: object, arguments: str) -> str:
        return await asyncio.to_thread(episode.call, function["name"], json.loads(arguments or "{}"))

    return FunctionTool(
        name=function["name"],
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


async def run(episode: Episode) -> None:
    client = AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key)
    agent = Agent(
        name="clerk",
        instructions=episode.rules,
        tools=[tool_of(episode, tool["function"]) for tool in episode.tools],
        model=MODEL(model=episode.model, openai_client=client),
    )
    await Runner.run(agent, episode.task, max_turns=20)


set_tracing_disabled(True)
play_all(lambda episode: asyncio.run(run(episode)))
