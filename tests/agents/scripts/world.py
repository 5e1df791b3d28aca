"""Episodes of a world as the agents' scripts see them. Standard library alone: the agents' venv has nothing of ours.

`EPISODES` holds, as JSON, where each episode's model and world are. As a program, `world.py NAME [ARGUMENTS]` makes one
call in the first of them: the tool of agents that work a shell.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RULES = (
    "You work a small office with notes, a calendar, mail, a bank and a shop. Do what the task asks with the tools, "
    "one call at a time, then call done; give it the answer if the task asks for one."
)


@dataclass(frozen=True)
class Episode:
    """An episode: its task, the model that plays it (an OpenAI endpoint), and its world (an environment service)."""

    task: str
    base_url: str
    api_key: str
    model: str
    world_url: str
    instance: str
    tools: list[dict[str, Any]]
    rules: str = RULES

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Carry out a call in the world, and return what it says."""
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": "c00000000", "type": "function", "function": function}]
        body = {
            "instance_id": self.instance,
            "messages": {"role": "assistant", "content": None, "tool_calls": calls},
        }
        request = urllib.request.Request(
            f"{self.world_url}/step", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(json.load(response)["data"]["state"][0]["content"])

    def caller(self, name: str) -> Callable[..., str]:
        """Return a tool as a function of keyword arguments."""
        return lambda **arguments: self.call(name, arguments)


def episodes() -> list[Episode]:
    return [Episode(**episode) for episode in json.loads(os.environ["EPISODES"])]


def play_all(play: Callable[[Episode], Any]) -> None:
    """Play every episode, one after the other."""
    for episode in episodes():
        play(episode)


if __name__ == "__main__":
    print(episodes()[0].call(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))
