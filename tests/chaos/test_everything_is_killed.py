"""One run with tasks of its own making, step labels and guidance, of which every part is killed in turn.

Each time it goes on by itself, or stops in order with one line and is resumed by the same command. In the end the
rollouts of every step that was logged are there. That nothing else is lost is seen in `test_same_after_kills`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from agentevolver.utils.files import read_jsonl
from agentevolver.utils.processes import ProcessId, identify
from tests.e2e.runs import Launched, kill

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]

ROLLOUTS = 16
WANTED = (
    "--env-module",
    "pocket=benchmarks.isolated_pocket:IsolatedPocket",
    "task_manager.n=1",
    "task_manager.max_seed_tasks=8",
    "task_manager.mixture.synthetic_data_ratio=1",
    "attribution_driven_credit_assignment.enable=true",
    "exp_manager.train_rollout_mode=mixed",
    "exp_manager.rollout_ratio=0.5",
    "exp_manager.init_exp_before_training=true",
    "exp_manager.init_rollouts=2",
    "exp_manager.init_tasks=4",
    "exp_manager.reme.enable_context_generator=true",
    "exp_manager.reme.enable_summarizer=true",
    "exp_manager.reme.updated_freq=1",
    "exp_manager.pruning.every_steps=0",
    "exp_manager.encoder.kind=hashing",
    "exp_manager.retrieval.max_chars=200",
    # What is gone is gone: nobody waits ten minutes for it here.
    "actor_rollout_ref.rollout.step_timeout_s=60",
    "env_service.timeout_s=60",
    "llm.timeout_s=30",
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
    "trainer.total_training_steps=500",
    "trainer.save_freq=2",
    "trainer.max_actor_ckpt_to_keep=2",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.dump_samples=false",
    "watchdog.floor_s=30",
)


def isolated_instances(run: Launched) -> list[ProcessId]:
    """Processes of single instances: what an environment host has forked, without the one that they are forked from."""
    found = []
    for host in run.victims("ray::Host"):
        with suppress(psutil.NoSuchProcess):  # instances come and go
            for child in psutil.Process(host.pid).children(recursive=True):
                if not child.children() and (identity := identify(child.pid)) is not None:
                    found.append(identity)
    return found


def goes_on(run: Launched, what: str) -> None:
    done = max(run.steps_done(), default=0)
    run.wait_for(lambda: max(run.steps_done(), default=0) >= done + 2, f"two more steps after {what}", 300)


def test_a_run_outlives_the_death_of_each_of_its_parts(started: Callable[..., Launched]) -> None:
    run = started(*WANTED)
    run.wait_for(lambda: 1 in run.steps_done(), "first step", 600)

    in_place: tuple[tuple[str, Callable[[], list[ProcessId]]], ...] = (
        ("the teacher", lambda: run.victims("agentevolver.recipes.offline.teacher", "teacher")),
        ("the environment service", lambda: run.victims("env_service", "env_service")),
        ("isolated instances", lambda: isolated_instances(run)),
        ("an environment host", lambda: run.victims("ray::Host")[:1]),
        ("the experience actor", lambda: run.victims("ray::ExperienceActor")),
    )
    for what, found in in_place:
        run.wait_for(found, what)
        kill(found(), what)
        goes_on(run, f"the death of {what}")

    for what, name in (("vLLM's server", "ray::vLLMHttpServer"), ("the trainer", "ray::TaskRunner")):
        run.wait_for(lambda run=run: run.checkpointed() and run.steps_done(), "a checkpoint, and a step")  # type: ignore[misc]
        kill(run.victims(name), what)
        assert run.wait(240) not in (0, None), f"without {what} nothing can be learned"
        assert run.processes() == run.left_behind() == set(), f"after the death of {what} everything was stopped"
        assert "Traceback" not in run.output, run.output
        saved, run = run.checkpointed(), started(*WANTED)
        run.wait_for(lambda run=run: run.steps_done(), "a step after the resume", 600)  # type: ignore[misc]
        assert run.steps_done()[0] == saved + 1, f"after {what} it goes on where the last checkpoint was"
    goes_on(run, "the last resume")

    os.kill(run.process.pid, signal.SIGINT)
    assert run.wait(120) == 130
    assert run.processes() == run.left_behind() == set()
    steps = [record["step"] for record in read_jsonl(run.directory / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)), "one object a step, none missing, none twice"
    for step in steps:
        records = read_jsonl(run.directory / "trajectories" / f"step_{step}.jsonl")
        assert len(records) == len({record["trajectory_id"] for record in records}) == ROLLOUTS, (
            f"the rollouts of step {step}"
        )
        assert all(
            (record["outcome"] is None) == (record["stop_reason"] in ("env_error", "llm_error", "grading_error"))
            for record in records
        )
