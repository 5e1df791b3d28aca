"""Error rates of paired utility: planted experiences, half of them harmful, in the real pool, retriever and manager.

    python -m benchmarks.utility [--seeds 200] [--top-k 3] [--steps 10] [--effect 0.2]

A world of 20 experiences in one store, 10 good and 10 harmful, which differ in nothing that retrieval by similarity
sees, each about one of 20 subjects, of which a task has two: a step is 32 tasks with 8 rollouts each, of which 4 are
guided, and an experience that is shown moves the chance of success by +-effect. Tasks have chances of their own (.1 to
.9, so that groups without variance occur). Printed are how many of each were pruned within the steps, over the seeds,
and how often the bar is met: at least 9 harmful, at most 1 good.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentevolver.llm.embeddings import HashingEncoder
from agentevolver.types import Trajectory
from experience_manager.backend import EmbeddedBackend
from experience_manager.experience import Category, Experience
from experience_manager.manager import ExperienceManager
from experience_manager.question import Question
from experience_manager.settings import ExperienceSettings

PLANTED = 10
# What each experience is about; a task is about two of them.
# fmt: off
VERBS = (
    "open", "close", "move", "copy", "find", "send", "list", "read", "save", "name",
    "sort", "join", "split", "print", "scan", "share", "lock", "pack", "tag", "trim",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class World:
    """Sizes of the simulation: tasks a step, rollouts a task (half of them guided), steps, and how far an experience
    that is shown moves the chance of success."""

    tasks: int = 32
    rollouts: int = 8
    steps: int = 10
    effect: float = 0.2


def planted() -> list[Experience]:
    """Return the experiences, ids `good<i>` and `harm<i>`."""
    return [
        Experience(
            f"{VERBS[2 * i + is_harmful]} a note",
            f"{kind} advice {i}",
            id=f"{kind}{i}",
            category=Category.SUCCESS,
        )
        for i in range(PLANTED)
        for is_harmful, kind in enumerate(("good", "harm"))
    ]


def section(top_k: int = 3, **utility: Any) -> ExperienceSettings:
    """Return the settings of the simulation."""
    return ExperienceSettings.model_validate(
        {
            "train_rollout_mode": "mixed",
            "rollout_ratio": 0.5,
            "encoder": {"kind": "hashing"},
            "reme": {"enable_context_generator": True, "retrieve_top_k": top_k},
            "pruning": {"every_steps": 1},
            "ranking": {"use": "utility", **utility},
        }
    )


def rollout(task: str, number: int, step: int, success: bool, ids: tuple[str, ...], text: str) -> Trajectory:
    """Return a finished rollout, guided where there are ids."""
    injected = f"<EXP>{text}</EXP>" if ids else ""
    guidance = {"experience_ids": ids, "injected": injected, "text": text, "keep": False, "problem": ""}
    return Trajectory.from_dict(
        {
            "rollout_id": number,
            "task": {"task_id": task, "metadata": {}},
            "group_id": f"{task}-{step}",
            "messages": [{"role": "user", "content": injected + task}, {"role": "assistant", "content": "done"}],
            "steps": [{"index": 0, "action": "done", "observation": "ok"}],
            "stop_reason": "finished",
            "outcome": {"score": float(success), "success": success, "reason": ""},
            "guidance": guidance if ids else None,
        }
    )


async def play(manager: ExperienceManager, world: World, rng: np.random.Generator, first: int = 1) -> dict[str, float]:
    """Let the manager guide and settle the steps from `first` on; returns the last step's metrics."""
    metrics: dict[str, float] = {}
    for step in range(first, world.steps + 1):
        trajectories = []
        for place in range(world.tasks):
            one, other = rng.choice(VERBS, 2, replace=False)
            task = f"{one} and {other} the note {rng.integers(1000)}"
            messages = ({"role": "user", "content": task},)
            guidance = await manager.guide(Question(task, messages, step=step, place=place))
            moved = sum(world.effect if one.startswith("good") else -world.effect for one in guidance.experience_ids)
            base = rng.uniform(0.1, 0.9)
            for number in range(world.rollouts):
                guided = number % 2 == 0 and bool(guidance.experience_ids)
                chance = min(1.0, max(0.0, base + moved * guided))
                ids = guidance.experience_ids if guided else ()
                if guided:
                    await manager.injected(ids)
                success = bool(rng.random() < chance)
                trajectories.append(rollout(task, number, step, success, ids, guidance.text))
        metrics = await manager.record_step(step, trajectories)
    return metrics


async def pruned(folder: Path, seed: int, world: World, settings: ExperienceSettings) -> tuple[int, int]:
    """Return how many harmful and how many good experiences a run of the simulation prunes."""
    backend = EmbeddedBackend.open(settings, folder, encoder=HashingEncoder(64))
    manager = ExperienceManager(settings, backend)
    backend.pool.put(planted())
    await play(manager, world, np.random.default_rng(seed))
    left = [one.id for one in backend.pool.store.records(backend.pool.workspace)]
    await manager.aclose(1.0)
    kinds = {kind: PLANTED - sum(one.startswith(kind) for one in left) for kind in ("harm", "good")}
    return kinds["harm"], kinds["good"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = World()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--top-k", type=int, default=3)
    parser.add_argument("--steps", type=int, default=usual.steps)
    parser.add_argument("--tasks", type=int, default=usual.tasks)
    parser.add_argument("--effect", type=float, default=usual.effect)
    parser.add_argument("--certainty", type=float)
    parser.add_argument("--prior-sd", type=float)
    parser.add_argument("--rank-weight", type=float)
    parser.add_argument("--explore", type=float)
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("certainty", "prior_sd", "rank_weight", "explore")}
    settings = section(options.top_k, **{name: value for name, value in given.items() if value is not None})
    world = World(tasks=options.tasks, steps=options.steps, effect=options.effect)
    counts = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            counts.append(asyncio.run(pruned(Path(folder), seed, world, settings)))
    harm, good = np.array(counts).T
    print(
        f"{options.seeds} seeds, {world.steps} steps of {world.tasks} tasks x {world.rollouts}, "
        f"effect {world.effect}, {settings.reme.retrieve_top_k} shown: "
        f"pruned {harm.mean():.2f} of {PLANTED} harmful (least {harm.min()}), {good.mean():.3f} of {PLANTED} good "
        f"(most {good.max()}); >= 9 and <= 1 in {np.mean((harm >= 9) & (good <= 1)):.3f}"
    )


if __name__ == "__main__":
    main()
