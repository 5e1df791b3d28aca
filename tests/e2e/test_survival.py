"""A run that is hurt: it goes on, or ends by name and continues where it was; and Ctrl-C leaves nothing."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agentevolver.utils.files import read_jsonl, written
from tests.e2e.runs import Launched, kill, launch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

STEPS = (
    "trainer.total_training_steps=40",
    "trainer.save_freq=2",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
)


def records(run: Launched, folder: str, step: int) -> list[dict[str, Any]]:
    path = written(run.directory / folder / f"step_{step}.jsonl")
    assert path is not None
    return read_jsonl(path)


def rollouts(run: Launched, step: int) -> list[dict[str, Any]]:
    return records(run, "trajectories", step)


def tasks_of(run: Launched, step: int) -> list[str]:
    return sorted(t["task"]["task_id"] for t in rollouts(run, step))


def after_a_kill(run: Launched) -> tuple[int, list[dict[str, Any]]]:
    """The third step after the environment service was killed, and the rollouts up to it."""
    kill(run.victims("env_service", "env_service"), "environment service")
    survived = max(run.steps_done()) + 3
    run.wait_for(lambda: survived in run.steps_done(), "step after the environment service was killed")
    assert "env_service" in run.output, "the death is reported"
    return survived, [t for n in range(1, survived + 1) for t in rollouts(run, n)]


def test_a_run_survives_its_environment_service_its_trainer_and_ctrl_c(tmp_path: Path) -> None:
    first = launch(tmp_path, "hurt", *STEPS)
    try:
        first.wait_for(lambda: 1 in first.steps_done(), "first step")
        survived, played = after_a_kill(first)
        for _ in range(4):  # a kill while the policy is updated hurts no rollout: the service is back before the next
            if not any(t["attempts"] > 1 for t in played):
                survived, played = after_a_kill(first)
        assert any(t["attempts"] > 1 for t in played), "rollouts were hurt"
        assert all((t["outcome"] is None) == (t["stop_reason"] in ("env_error", "llm_error")) for t in played)
        graded = {t["trajectory_id"] for t in played if t["outcome"] is not None}
        for step in range(1, survived + 1):
            rows = {row["key"].rpartition("_")[0] for row in records(first, "samples", step)}
            assert rows and rows <= graded, "what has no outcome is not trained on"

        first.wait_for(lambda: max(first.steps_done()) == first.checkpointed() + 1, "step after a checkpoint")
        kill(first.victims("ray::TaskRunner"), "trainer")
        assert first.wait(120) != 0
        assert first.processes() == first.left_behind() == set()
        torn, last = first.checkpointed(), max(first.steps_done())
        assert last > torn >= 4
        saved = torn - 2  # the newest checkpoint that is whole, once the disk has lost the end of the last one
        os.truncate(first.directory / "checkpoints" / f"global_step_{torn}" / "trainer.pt", 100)
        seen = tasks_of(first, saved + 1)

        for number in range(6):
            (first.directory / "logs" / f"ray.2020010{number + 1}-000000.log").write_text("of a launch long ago")

        second = launch(tmp_path, "hurt", *STEPS)
        try:
            second.wait_for(lambda: len(second.steps_done()) >= 2, "two steps after the resume")
            assert second.steps_done()[0] == saved + 1, "it goes on after the checkpoint"
            assert f"going on from global_step_{saved}, the newest checkpoint that is whole" in second.output
            assert tasks_of(second, saved + 1) == seen, "the same tasks in the same order"
            steps = [record["step"] for record in read_jsonl(second.directory / "metrics.jsonl")]
            assert steps == list(range(1, max(steps) + 1)), "one object a step, none twice"
            assert (
                len(list(second.directory.glob("logs/ray.*.log"))) <= 4
                and (second.directory / "logs" / "ray.log").exists()
            )

            os.kill(second.process.pid, signal.SIGINT)
            assert second.wait(60) == 130
            assert second.processes() == second.left_behind() == set()
        finally:
            second.end()
    finally:
        first.end()
