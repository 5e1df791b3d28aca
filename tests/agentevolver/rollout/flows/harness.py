"""Whole rollouts against an engine that says what it is told to and writes down what it saw."""

import asyncio
from dataclasses import dataclass, field

from agentevolver.rollout.engine import Generated
from agentevolver.rollout.flows import PlannerExecutorFlow, ReactFlow
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.types import Task
from context_manager.registry import TEMPLATES
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits

TASK = Task(task_id="t", env_type="fake")
ROOMY = ContextLimits(20_000, 20_000, 40_000, 64, 400)
FLOWS = {"react": ReactFlow(), "planner_executor": PlannerExecutorFlow()}


@dataclass
class ScriptedEngine:
    """Says the next of `replies` (ids), over and over; `calls` are (prompt, sampled, log-probs)."""

    replies: list
    calls: list = field(default_factory=list)
    reserves: list = field(default_factory=list)
    sampling: list = field(default_factory=list)

    async def generate(self, request_id, prompt_ids, sampling_params):
        number = len(self.calls)
        self.sampling.append(sampling_params)
        ids = list(self.replies[number % len(self.replies)])[: sampling_params["max_tokens"]]
        log_probs = [-(number + i / 1000) for i in range(len(ids))]
        self.calls.append((list(prompt_ids), ids, log_probs))
        self.reserves.append(sampling_params["max_tokens"])
        prompt_ids.clear()  # what was handed out is the engine's: nobody may rely on it any more
        return Generated(ids, log_probs, 1, 1)


class Environment:
    """What every environment here answers."""

    async def evaluate(self, instance_id, messages=None, params=None):
        return 1.0

    async def release_instance(self, instance_id):
        return True

    async def health(self):
        return True


@dataclass
class ScriptedEnv(Environment):
    """Says the next of `observations` (role, text or texts, refused), over and over, and never ends an episode
    itself."""

    observations: list
    opening: tuple = ({"role": "system", "content": "s"}, {"role": "user", "content": "go"})
    given: list = field(default_factory=list)

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        return {"state": [dict(message) for message in self.opening], "info": {}}

    async def step(self, instance_id, action, params=None, step_index=None):
        assert step_index == len(self.given)
        role, said, refused = self.observations[step_index % len(self.observations)]
        self.given.append(action["content"])
        state = [{"role": role, "content": text} for text in ((said,) if isinstance(said, str) else said)]
        return {"state": state, "reward": 0.0, "is_terminated": False, "info": {"refused": refused}}


@dataclass
class Played:
    rollout: object
    engine: ScriptedEngine
    env: ScriptedEnv
    context: object


def play(*arguments, **options):
    return asyncio.run(played(*arguments, **options))


async def played(
    renderer,
    template,
    flow,
    replies,
    observations,
    *,
    limits=ROOMY,
    max_steps=6,
    options=None,
    guide=None,
    env=None,
    engine=None,
    by_text=frozenset(),
    task=TASK,
    **more,
):
    """Run one rollout; `template` and `flow` are names or what they stand for."""
    engine = engine or ScriptedEngine(replies)
    env = env or ScriptedEnv(observations)
    made = []

    def new_context():
        made.append(
            (TEMPLATES[template] if isinstance(template, str) else template)(
                renderer, limits, options or ContextSettings()
            )
        )
        return made[-1]

    policy = RolloutPolicy(max_steps, 1, True, 0.0, by_text=by_text)
    chosen = FLOWS[flow] if isinstance(flow, str) else flow
    runner = RolloutRunner(policy, env, engine, new_context, lambda task: chosen, **more)
    rollout = await runner.run(task, "g", 0, {}, {}, guide)
    return Played(rollout, engine, env, made[-1])
