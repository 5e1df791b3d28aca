"""PocketWorld behind HTTP, played by a script with Hermes' calls on a real chat template."""

import functools
from contextlib import asynccontextmanager

from agentevolver.flows import ReactFlow
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.rollout.tool_calls import ToolUse
from agentevolver.tools.formats import tool_format
from agentevolver.types import Task
from context_manager.chat import ChatRenderer
from context_manager.registry import TEMPLATES
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits
from env_service.client import AsyncEnvClient
from env_service.environments.pocket.calls import undotted
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.oracle import reference
from env_service.registry import BUILT_IN
from tests.agentevolver.flows.harness import ScriptedEngine
from tests.env_service.local_hosts import serving
from tests.real_tokenizers import build_real

LIMITS = ContextLimits(30_000, 60_000, 90_000, 1_500, 400)
TASKS = PocketEnv.get_query_list("train", {"n": 6})
LOST, BROKEN = '<tool_call>{"name": "note_fnd", "arguments": {}}</tool_call>', '<tool_call>{"name": </tool_call>'


def solution(task_id):
    """Return the reference of a task as Hermes' calls, one text a call."""
    return [undotted(text) for text in reference(task_id, "json")]


@functools.cache
def qwen3():
    return ChatRenderer(build_real("qwen3"), {"enable_thinking": False})


@asynccontextmanager
async def pocket():
    async with serving({"pocket": BUILT_IN["pocket"]}) as running, AsyncEnvClient(running.url) as client:
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
