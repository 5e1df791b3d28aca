"""A world of two tools."""

import json
from dataclasses import dataclass, field

from tests.agentevolver.rollout.flows.harness import Environment

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a place.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "done", "description": "End it.", "parameters": {"type": "object", "properties": {}}},
    },
]


@dataclass
class NativeEnv(Environment):
    """Answers each call in order; `done` ends the episode. `later` maps a step to the tools from then on."""

    later: dict = field(default_factory=dict)
    given: list = field(default_factory=list)
    created: list = field(default_factory=list)
    info: dict = field(default_factory=lambda: {"tools": TOOLS})
    graded: list = field(default_factory=list)

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        self.created.append(params)
        state = [{"role": "system", "content": "You live in a house."}, {"role": "user", "content": "Find the cat."}]
        return {"state": state, "info": self.info}

    async def step(self, instance_id, action, params=None, step_index=None):
        assert step_index == len(self.given), "what the environment is given is numbered without gaps"
        self.given.append(action)
        calls = action.get("tool_calls", [])
        state = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": f"seen {json.loads(call['function']['arguments'])}",
            }
            for call in calls
        ]
        over = any(call["function"]["name"] == "done" for call in calls)
        info = {"tools": self.later[step_index]} if step_index in self.later else {}
        state = state or [{"role": "user", "content": "Call a tool."}]
        return {"state": state, "reward": float(over), "is_terminated": over, "info": info}

    async def evaluate(self, instance_id, messages=None, params=None):
        self.graded = messages
        return 1.0
