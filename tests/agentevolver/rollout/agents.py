"""Rollouts that an agent of the user's plays, with a policy whose replies follow from the prompt and the seed alone."""

import asyncio
import hashlib
import random
from contextlib import asynccontextmanager

from openai import AsyncOpenAI

from agentevolver.rollout.agent import FunctionAgent
from agentevolver.rollout.agent_attempt import AgentAttempts
from agentevolver.rollout.engine import Generated
from agentevolver.rollout.flows import ReactFlow
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.types import Task
from agentevolver.utils import seeds
from context_manager.chat import ChatRenderer
from context_manager.template import CausalTemplate, ContextLimits
from tests.agentevolver.rollout.test_rollout import FakeEnv

TASK = Task(task_id="t", env_type="fake")
LIMITS = ContextLimits(2_000, 4_000, 6_000, 24, 100)
LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789"


class SeededEngine:
    """Samples letters that follow from the prompt and the seed, and closes most replies; `faults` are raised first."""

    def __init__(self, tokenizer, faults=()):
        self.tokenizer, self.faults, self.prompts, self.wait_s = tokenizer, list(faults), [], 0.0

    async def generate(self, request_id, prompt_ids, sampling_params):
        self.prompts.append(list(prompt_ids))
        await asyncio.sleep(self.wait_s)
        if self.faults and (error := self.faults.pop(0)) is not None:
            raise error
        named = hashlib.sha256(repr((list(prompt_ids), sampling_params.get("seed"))).encode()).digest()
        rng = random.Random(named)
        text = "".join(rng.choices(LETTERS, k=rng.randint(1, 30)))
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        ids = ids[: sampling_params["max_tokens"]]
        return Generated(ids, [-rng.random() for _ in ids], 3, 4)


class EchoEnv(FakeEnv):
    """Answers an action with what it was."""

    def __init__(self, length=4, **options):
        super().__init__(length, **options)
        self.evaluated = []

    async def step(self, instance_id, action, params=None, step_index=None):
        assert instance_id in self.open
        result = await super().step(instance_id, action, params, step_index)
        answers = [
            {"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"], "content": f"ran {step_index}"}
            for c in action.get("tool_calls") or []
        ]
        said = {"role": "user", "content": f"seen {step_index}: {action['content']}"}
        return {**result, "state": answers or [said], "reward": 0.25}

    async def evaluate(self, instance_id, messages=None, params=None):
        self.evaluated.append(messages)
        return await super().evaluate(instance_id, messages, params)


@asynccontextmanager
async def serving(tokenizer, agent, limits=LIMITS, **options):
    made = AgentAttempts(
        agent if hasattr(agent, "play") else FunctionAgent(agent, 0.3), ChatRenderer(tokenizer), limits, **options
    )
    try:
        yield made
    finally:
        await made.stop()


def runner(
    tokenizer, env, engine, *, new_attempt=None, limits=LIMITS, tool_use=None, graders=None, max_steps=6, **policy
):
    settings = {"max_tries": 2, "sparse": True, "unavailable_timeout_s": 0.0, **policy}
    renderer = ChatRenderer(tokenizer)
    return RolloutRunner(
        RolloutPolicy(max_steps=max_steps, **settings),
        env,
        engine,
        lambda: CausalTemplate(renderer, limits),
        lambda task: ReactFlow(),
        graders=graders,
        new_attempt=new_attempt,
        **({"tool_use": tool_use} if tool_use is not None else {}),
    )


async def rolled(
    tokenizer, agent, env=None, engine=None, *, task=TASK, guide=None, seed=7, limits=LIMITS, serve=None, **more
):
    """Return the rollout that an agent plays; `agent` None: the built-in flow."""
    env, engine = env or EchoEnv(), engine or SeededEngine(tokenizer)
    with seeds.drawing(seed, "group", 0):
        if agent is None:
            return await runner(tokenizer, env, engine, limits=limits, **more).run(task, "g", 0, {}, {}, guide)
        async with serving(tokenizer, agent, limits, **(serve or {})) as made:
            return await runner(tokenizer, env, engine, new_attempt=made, limits=limits, **more).run(
                task, "g", 0, {}, {}, guide
            )


def roll(*arguments, **options):
    return asyncio.run(rolled(*arguments, **options))


async def ask(endpoint, messages, **options):
    """Let the policy answer messages."""
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        return await client.chat.completions.create(model="policy", messages=messages, **options)
