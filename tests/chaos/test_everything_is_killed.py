"""One run with tasks of its own making, step labels and guidance, of which every part is killed in turn.

Each time it goes on by itself, or stops in order with one line and is resumed by the same command. In the end nothing
that was acknowledged is missing: the rollouts of every step that was logged, the tasks that were kept, the experiences
that were in the store at the checkpoint that the run goes on from.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agentevolver.utils.files import read_jsonl
from agentevolver.utils.processes import ProcessId, identify, send
from tests.e2e.runs import ROOT, Launched, command_of, launch

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


class Acknowledged:
    """What the run has said to be there, noted again before each blow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.tasks: set[str] = set()
        self.experiences: set[str] = set()

    def note(self) -> None:
        self.tasks |= kept_tasks(self._directory)
        # What was learned after the last checkpoint is learned again, with the steps that are repeated.
        self.experiences |= stored_experiences(self._directory, until=saved_step(self._directory))


def kept_tasks(directory: Path) -> set[str]:
    lines = [line for path in (directory / "tasks").glob("*.jsonl") for line in read_jsonl(path)]
    return {line.get("task", line)["task_id"] for line in lines}


def saved_step(directory: Path) -> int:
    marker = directory / "checkpoints" / "latest_checkpointed_iteration.txt"
    return int(marker.read_text() or 0) if marker.exists() else 0


def stored_experiences(directory: Path, until: int | None = None) -> set[str]:
    path = directory / "experience.sqlite"
    if not path.exists():
        return set()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        return {
            row[0] for row in connection.execute("SELECT id FROM records WHERE ? IS NULL OR step <= ?", (until, until))
        }
    finally:
        connection.close()


def victims(run: Launched, what: str, service: str | None = None) -> list[ProcessId]:
    return [process for process in run.processes(service) if what in command_of(process)]


def kill(found: list[ProcessId], what: str) -> None:
    assert found, f"there is no {what} to kill"
    for victim in found:
        send(victim, signal.SIGKILL)


def isolated_instances(run: Launched) -> list[ProcessId]:
    """Processes of single instances: what an environment host has forked, without the one that they are forked from."""
    found = []
    for host in victims(run, "ray::Host"):
        with suppress(psutil.NoSuchProcess):  # instances come and go
            for child in psutil.Process(host.pid).children(recursive=True):
                if not child.children() and (identity := identify(child.pid)) is not None:
                    found.append(identity)
    return found


def checkpointed(run: Launched) -> int:
    marker = run.directory / "checkpoints" / "latest_checkpointed_iteration.txt"
    return int(marker.read_text()) if marker.exists() and marker.read_text() else 0


def goes_on(run: Launched, what: str) -> None:
    done = max(run.steps_done(), default=0)
    run.wait_for(lambda: max(run.steps_done(), default=0) >= done + 2, f"two more steps after {what}", 300)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Launched]]:
    """Start, or resume, the one run; whatever happens, nothing of it stays."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    runs: list[Launched] = []

    def start() -> Launched:
        runs.append(launch(tmp_path, "chaos", *WANTED))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def test_a_run_outlives_the_death_of_each_of_its_parts(started: Callable[[], Launched]) -> None:
    run = started()
    known = Acknowledged(run.directory)
    run.wait_for(lambda: 1 in run.steps_done(), "first step", 600)

    in_place: tuple[tuple[str, Callable[[], list[ProcessId]]], ...] = (
        ("the teacher", lambda: victims(run, "agentevolver.recipes.offline.teacher", "teacher")),
        ("the environment service", lambda: victims(run, "env_service", "env_service")),
        ("isolated instances", lambda: isolated_instances(run)),
        ("an environment host", lambda: victims(run, "ray::Host")[:1]),
        ("the experience actor", lambda: victims(run, "ray::ExperienceActor")),
    )
    for what, found in in_place:
        known.note()
        run.wait_for(found, what)
        kill(found(), what)
        goes_on(run, f"the death of {what}")

    for what, name in (("vLLM's server", "ray::vLLMHttpServer"), ("the trainer", "ray::TaskRunner")):
        run.wait_for(lambda run=run: checkpointed(run) and run.steps_done(), "a checkpoint, and a step")  # type: ignore[misc]
        known.note()
        kill(victims(run, name), what)
        assert run.wait(240) not in (0, None), f"without {what} nothing can be learned"
        assert run.processes() == run.left_behind() == set(), f"after the death of {what} everything was stopped"
        assert "Traceback" not in run.output, run.output
        saved, run = checkpointed(run), started()
        run.wait_for(lambda run=run: run.steps_done(), "a step after the resume", 600)  # type: ignore[misc]
        assert run.steps_done()[0] == saved + 1, f"after {what} it goes on where the last checkpoint was"
    goes_on(run, "the last resume")

    os.kill(run.process.pid, signal.SIGINT)
    assert run.wait(120) == 130
    assert run.processes() == run.left_behind() == set()
    nothing_is_missing(run.directory, known)


def nothing_is_missing(directory: Path, known: Acknowledged) -> None:
    steps = [record["step"] for record in read_jsonl(directory / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)), "one object a step, none missing, none twice"
    kept, guided_by = kept_tasks(directory), set()
    for step in steps:
        records = read_jsonl(directory / "trajectories" / f"step_{step}.jsonl")
        assert len(records) == len({record["trajectory_id"] for record in records}) == ROLLOUTS, (
            f"the rollouts of step {step}"
        )
        assert {record["task"]["task_id"] for record in records} <= kept
        assert all(
            (record["outcome"] is None) == (record["stop_reason"] in ("env_error", "llm_error", "grading_error"))
            for record in records
        )
        guided_by |= {name for record in records if record["guided"] for name in record["guidance"]["experience_ids"]}
    assert known.tasks and known.tasks <= kept
    stored = stored_experiences(directory)
    assert known.experiences and known.experiences <= stored
    assert guided_by <= stored, "what guided a rollout had been acknowledged"
