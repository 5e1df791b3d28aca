"""Verified synthesis end to end on gymnasium and mcp, and five steps of training on the tasks.

The model knows the world and proposes many wrong references: all that is kept must be right by the world's own truth,
and hold when it is carried out again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentevolver.types import Task
from agentevolver.utils.files import read_jsonl
from task_manager.tasks import write_objectives
from tests.e2e.runs import ROOT, Launched
from tests.e2e.tiny_model import build
from tests.task_manager.synthesis_driver import MindModel, kept_tasks, recheck, wrong_ones

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1800)]

STEPS = 5
ROLLOUT = "actor_rollout_ref.rollout."
ROOM = 4096
SMALL = (
    *("device=cpu", "ray.dashboard=false", "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
    *(f"{ROLLOUT}n=2", f"{ROLLOUT}response_length=16", f"{ROLLOUT}multi_turn.max_steps=4", f"{ROLLOUT}max_env_len=256"),
    *("data.max_prompt_length=2048", "data.max_response_length=1536", f"{ROLLOUT}max_model_len={ROOM}"),
    *(
        f"{key}={ROOM}"
        for key in ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", f"{ROLLOUT}log_prob_max_token_len_per_gpu")
    ),
    f"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu={ROOM}",
    *(
        f"trainer.total_training_steps={STEPS}",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.val_before_train=false",
    ),
    *(
        "task_manager.n=0",
        "task_manager.mixture.synthetic_data_ratio=1000",
        "task_manager.grader.synthetic_grader=state",
    ),
)


def check(env_type: str, tasks: list[Task], model: MindModel, findings: list[str | None], least: int) -> None:
    assert len(tasks) >= least and len(model.proposed) > len(tasks)
    assert wrong_ones(env_type, tasks) == []
    assert findings == [None] * len(tasks)


def train(
    folder: Path, name: str, env_type: str, tasks: list[Task], env: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Train on the tasks and return the records of the rollouts."""
    path = folder / f"{name}.jsonl"
    write_objectives(path, tasks)
    texts = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    overrides = (f"env_service.env_type={env_type}", f"task_manager.train_data_path={path}", "data.val_splits=[dev]")
    model = build(folder / "model", texts)
    launched = Launched(
        folder, name, (*SMALL, f"actor_rollout_ref.model.path={model}", *overrides), conf="questioning", env=env
    )
    try:
        assert launched.wait(850) == 0, launched.output
        assert launched.steps_done()[-STEPS:] == list(range(1, STEPS + 1))
        assert launched.processes() == launched.left_behind() == set()
        return [
            record
            for file in sorted((launched.directory / "trajectories").glob("*.jsonl"))
            for record in read_jsonl(file)
        ]
    finally:
        launched.end()


def check_rollouts(records: list[dict[str, Any]], tasks: list[Task]) -> None:
    assert len(records) == STEPS * 4 * 2
    queries = {task.task_id: task.query for task in tasks}
    for record in records:
        assert record["outcome"] is not None and record["task"]["evaluator"] == "state"
        assert queries[record["task"]["task_id"]] in record["messages"][1]["content"]


def test_tasks_of_lakes_and_taxis_are_made_verified_and_trained_on(tmp_path: Path) -> None:
    model, tasks, findings = MindModel(), [], []
    for world in ("FrozenLake-v1", "Taxi-v4"):
        (tmp_path / world).mkdir()
        made = kept_tasks(
            "gymnasium", model, tmp_path / world, seeds=12, list_params={"worlds": [world]}, check=recheck
        )
        kept, _, found = asyncio.run(made)
        tasks += kept
        findings += found
    check("gymnasium", tasks, model, findings, 50)
    records = train(tmp_path, "gymnasium", "gymnasium", tasks)
    check_rollouts(records, tasks)
    shown = [record["messages"][1]["content"] for record in records]
    assert all("You are A, at row" in text or "The taxi T is at row" in text for text in shown), (
        "the policy sees where it is"
    )


def test_tasks_of_notes_are_made_verified_and_trained_on(tmp_path: Path) -> None:
    model = MindModel()
    (tmp_path / "made").mkdir()
    tasks, funnel, findings = asyncio.run(
        kept_tasks("mcp", model, tmp_path / "made", seeds=20, val_splits=("dev",), check=recheck)
    )
    check("mcp", tasks, model, findings, 10)
    assert funnel.unchecked == 0 and funnel.passed < funnel.verified
    check_rollouts(train(tmp_path, "mcp", "mcp", tasks), tasks)
