"""A world of two tools; and PocketWorld behind HTTP, played by a script with Hermes' calls on a real chat template."""

import functools
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentevolver.rollout.flows import ReactFlow
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.rollout.tools.formats import tool_format
from agentevolver.types import Task
from context_manager.chat import ChatRenderer
from context_manager.registry import TEMPLATES
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits
from env_service.client import AsyncEnvClient
from env_service.environments.pocket.calls import undotted
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.oracle import reference
from env_service.registry import resolve
from tests.agentevolver.rollout.flows.harness import ScriptedEngine
from tests.env_service.local_hosts import serving
from tests.real_tokenizers import build_real

LIMITS = ContextLimits(30_000, 60_000, 90_000, 1_500, 400)
TASKS = PocketEnv.get_query_list("train", {"n": 6})
LOST, BROKEN = '<tool_call>{"name": "note_fnd", "arguments": {}}</tool_call>', '<tool_call>{"name": </tool_call>'


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
class NativeEnv:
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

    async def release_instance(self, instance_id):
        return True

    async def health(self):
        return True


def solution(task_id):
    """Return the reference of a task as Hermes' calls, one text a call."""
    return [undotted(text) for text in reference(task_id, "json")]


@functools.cache
def qwen3():
    return ChatRenderer(build_real("qwen3"), {"enable_thinking": False})


@asynccontextmanager
async def pocket():
    async with serving(resolve(["pocket"])) as running, AsyncEnvClient(running.url) as client:
        yield client


async def play(client, texts, *, task=None, template="causal", flow=None, **env_params):
    renderer = qwen3()
    engine = ScriptedEngine([[*renderer.encode(text), renderer.tokenizer.eos_token_id] for text in texts])
    flow = flow or ReactFlow()
    runner = RolloutRunner(
        RolloutPolicy(len(texts), 1, True, 0.0),
        client,
        engine,
        lambda: TEMPLATES[template](renderer, LIMITS, ContextSettings()),
        lambda task: flow,
        tool_use=ToolUse(tool_format("hermes", renderer.tokenizer)),
    )
    rollout = await runner.run(task or Task(TASKS[0], "pocket"), "g", 0, {}, env_params)
    return rollout, engine
