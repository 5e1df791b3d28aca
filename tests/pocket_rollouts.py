"""Rollouts of pocket's tasks by a policy that knows the solution and makes its own mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentevolver.types import Task, Trajectory
from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tasks import make_task
from tests.trajectories import trajectory


def rollout(task_id: str, choose: Callable[[PocketCall], str], params: Mapping[str, Any] | None = None) -> Trajectory:
    """A trajectory of what `choose` says for each call of the reference solution, in a fresh world made with
    `params`."""
    env = PocketEnv(task_id, "x", {"slack": 3, **(params or {})})
    opening = env.get_init_state()["state"]
    steps = []
    for call in make_task(task_id).solution:
        action = choose(call)
        result = env.step({"role": "assistant", "content": action})
        steps.append({"index": len(steps), "action": action, "observation": result["state"][0]["content"]})
        if result["is_terminated"]:
            break
    score = env.evaluate()
    return trajectory(
        task=Task(task_id, "pocket", metadata={"split": "train"}).to_dict(),
        group_id=task_id,
        messages=opening,
        steps=steps,
        stop_reason="finished" if env.world.answer is not None else "max_steps",
        outcome={"score": score, "success": score == 1.0},
    )
