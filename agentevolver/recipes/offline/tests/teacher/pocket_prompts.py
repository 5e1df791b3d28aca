"""Prompts for the teacher made of real pocket episodes, and its replies read back."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

from pydantic import RootModel

from agentevolver.llm import prompts
from agentevolver.llm.reply import read_reply
from agentevolver.recipes.offline.seed.demonstrator import Habits, demonstrate
from agentevolver.recipes.offline.teacher.prompt import MistakeRates
from agentevolver.recipes.offline.teacher.service import Teacher
from env_service.environments.pocket.env import PocketEnv
from task_manager.profile import shipped_profile

NO_MISTAKES = MistakeRates(0, 0, 0, 0, 0, 0, 0)
Steps = list[tuple[int, str, str]]
PROFILE = "\n".join(f"- {o.name}: {o.description}" for e in shipped_profile("pocket").entities for o in e.opts)


class _Anything(RootModel[dict[str, Any]]):
    pass


def ask(
    teacher: Teacher, asked: str, /, *, temperature: float = 0.0, seed: int | None = None, **sections: str
) -> dict[str, Any]:
    """Send one prompt and return the JSON of the reply."""
    messages = prompts.messages(asked, "Do it.", sections)
    return read_reply(teacher.answer(messages, temperature=temperature, seed=seed), _Anything).root


def open_env(task_id: str, steps: int, *, verbose: bool = True) -> tuple[PocketEnv, str]:
    """Return a world without a task, and what it says first."""
    env = PocketEnv(task_id, "t", {"is_open_query": True, "explore_steps": steps, "verbose": verbose, "manual": True})
    return env, env.get_init_state()["state"][0]["content"]


def carry_out(env: PocketEnv, actions: list[str]) -> Steps:
    """Carry actions out up to the end of the episode."""
    done: Steps = []
    for action in actions:
        if env.is_over:
            break
        done.append((len(done), action, str(env.step({"role": "assistant", "content": action})["state"][0]["content"])))
    return done


@lru_cache(maxsize=1024)
def explore(task_id: str, number: int = 0, *, breadth: int = 4, depth: int = 8) -> tuple[str, Steps]:
    """Let a teacher without mistakes explore a world; returns the opening and the steps."""
    teacher = Teacher(rates=NO_MISTAKES)
    env, opening = open_env(task_id, breadth + depth)
    steps: Steps = []
    for i in range(breadth + depth):
        phase, shown = ("breadth", steps) if i < breadth else ("depth", steps[-depth:])
        sections = {"profile": PROFILE, "opening": opening, "phase": phase, "transcript": prompts.transcript(shown)}
        action = ask(teacher, "explorer/act", temperature=1.0, seed=1000 * number + i, **sections)["action"]
        steps.append((i, action, str(env.step({"role": "assistant", "content": action})["state"][0]["content"])))
    return opening, steps


def demonstrated(task_id: str, seed: int) -> tuple[PocketEnv, Steps]:
    """Return an episode of the noisy demonstrator, replayed, so that it may be graded."""
    rng = random.Random(f"{task_id}-{seed}")
    habits = Habits(slip=0.25, polite=0.0, explore=0.0, hint=0.0)
    actions = [m["content"] for m in demonstrate(task_id, rng, habits) if m["role"] == "assistant"]
    env = PocketEnv(task_id, "t", {"slack": 2})
    return env, carry_out(env, actions)
