"""PocketWorld as verl's tools, and its reward: what `benchmarks.peers` has run in verl's own workers.

verl makes and releases a tool for each call. So an episode's instance is opened by its first call, its name kept in the
episode's `extra_fields`, and the instance graded and released by the reward function, which verl calls at the end.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from env_service.client import AsyncEnvClient

EPISODES = "PEERS_VERL_EPISODES"
"""The environment variable with the file that each episode adds a line to."""


@functools.cache
def client_of(url: str) -> AsyncEnvClient:
    """Return this process's client of a service."""
    return AsyncEnvClient(url)


class PocketTool(BaseTool):
    """A call of PocketWorld. Its `config` has `url`, of the service, `params` of its instances, and `max_turns`."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Step the episode's instance and return what it answers.

        verl's loop ends with a reply without a call, and no tool can end it: when the world is over, the reply after
        this one is counted as the last that is allowed.
        """
        episode: AgentData = kwargs["agent_data"]
        kept, client = episode.extra_fields, client_of(self.config["url"])
        if "instance" not in kept:
            name = f"verl-{uuid4().hex}"
            await client.create_instance("pocket", episode.tools_kwargs["task_id"], name, self.config["params"])
            kept.update(instance=name, steps=0)
        function = {"name": self.name, "arguments": json.dumps(parameters)}
        call = {"id": f"c{kept['steps']:08d}", "type": "function", "function": function}
        action = {"role": "assistant", "content": "", "tool_calls": [call]}
        answer = await client.step(kept["instance"], action, step_index=kept["steps"])
        kept["steps"] += 1
        if answer["is_terminated"] or kept["steps"] == self.config["max_turns"]:
            episode.assistant_turns = self.config["max_turns"]
        return ToolResponse(text="\n".join(str(message["content"]) for message in answer["state"])), 0.0, {}


class WatchedToolAgentLoop(ToolAgentLoop):
    """verl's loop with a counter in its hand."""

    replies = 0

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Play an episode as verl does, and write down how many replies and tokens were sampled."""
        output = await super().run(sampling_params, priority, **kwargs)
        record = {"time": time.time(), "replies": self.replies, "tokens": sum(output.response_mask)}
        with open(os.environ[EPISODES], "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return output

    async def _handle_generating_state(self, *arguments: Any, **options: Any) -> AgentState:
        self.replies += 1
        return await super()._handle_generating_state(*arguments, **options)


async def compute_score(extra_info: dict[str, Any], url: str, **_: Any) -> float:
    """Grade an episode by its instance, and release that; 0 without one, since then nothing was called."""
    name = extra_info.get("instance")
    if name is None:
        return 0.0
    client = client_of(url)
    score = await client.evaluate(name)
    await client.release_instance(name)
    return score
