"""The agent of examples/openai_agents.yaml, with an episode in the place of the rollout's environment."""

import asyncio
import json
from types import SimpleNamespace

from world import Episode, play_all

from examples.agents.openai_agents_agent import play


class World:
    """The environment as a rollout hands it to an agent."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.tools = episode.tools
        self.messages = [{"role": "system", "content": episode.rules}, {"role": "user", "content": episode.task}]

    async def step(self, action: dict) -> SimpleNamespace:
        (call,) = action["tool_calls"]
        function = call["function"]
        text = await asyncio.to_thread(self.episode.call, function["name"], json.loads(function["arguments"]))
        return SimpleNamespace(text=text, over=function["name"] == "done")


play_all(lambda episode: asyncio.run(play(None, episode, World(episode))))
