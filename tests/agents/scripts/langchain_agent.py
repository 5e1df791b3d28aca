"""LangChain's `create_agent` with its own OpenAI model."""

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from world import Episode, play_all


def play(episode: Episode) -> None:
    tools = []
    for tool in episode.tools:
        function = tool["function"]
        tools.append(
            StructuredTool.from_function(
                episode.caller(function["name"]),
                name=function["name"],
                description=function["description"],
                args_schema=function["parameters"],
            )
        )
    model = ChatOpenAI(model=episode.model, base_url=episode.base_url, api_key=episode.api_key)
    agent = create_agent(model, tools=tools, system_prompt=episode.rules)
    agent.invoke({"messages": [{"role": "user", "content": episode.task}]}, {"recursion_limit": 60})


play_all(play)
