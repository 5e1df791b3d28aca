"""Rounds of the closed loop over the real services, with the built-in teacher in every role.

A policy that never learnt two of pocket's families: the tasks that are made against its failures are of those families.
And whatever is killed while they are made, the same are there after the resume.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.config.manager_settings import from_settings
from agentevolver.config.schema import Settings
from agentevolver.recipes.seal.closed_loop import RECORD
from agentevolver.recipes.seal.diagnose import diagnose
from agentevolver.recipes.seal.part import parts
from agentevolver.trainer.job.questioning import prepare
from agentevolver.trainer.parts import TrainerPart
from agentevolver.trainer.recipe_parts import PartContext
from agentevolver.trainer.tasks import TrainingTasks
from agentevolver.types import Task, Trajectory
from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.tasks import task_ids
from task_manager.actions import format_of
from task_manager.background import round_file
from task_manager.journal import read_journal
from task_manager.services import running
from task_manager.tasks import read_objectives, solution_of, write_tasks
from tests.free_ports import free_port
from tests.pocket_rollouts import rollout

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]

LOOP = Path(__file__).parents[1] / "examples" / "closed_loop.yaml"
NEVER_LEARNT = frozenset({"cal.move", "shop.ret"})
SEEN = 200
BUDGET = 24


def rolled_out(task_id: str) -> Trajectory:
    """What a policy does that takes two tools for calls without a second argument."""
    one = rollout(task_id, spoken)
    one.diagnoses = diagnose(one, format_of("pocket"))
    return one


def spoken(call: PocketCall) -> str:
    return call.tool if call.tool in NEVER_LEARNT else " ".join((call.tool, *call.args))


def settings_of(folder: Path) -> Settings:
    folder.mkdir(exist_ok=True)
    write_tasks(
        folder / "train.jsonl", [Task(name, "pocket", metadata={"split": "train"}) for name in task_ids("train", SEEN)]
    )
    section = ("n=1", "max_seed_tasks=60", "mixture.use_original_tasks=true")
    loop = ("enable=true", "every=2", f"budget_tasks={BUDGET}")
    items = [*(f"task_manager.{item}" for item in section), *(f"recipes.seal.{item}" for item in loop)]
    urls = [f"env_service.env_url=http://127.0.0.1:{free_port()}", f"llm.teacher.url=http://127.0.0.1:{free_port()}/v1"]
    folders = [f"experiment.root={folder}", f"task_manager.train_data_path={folder / 'made.jsonl'}"]
    more = (
        "device=cpu",
        "actor_rollout_ref.model.path=x",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "data.train_batch_size=4",
        "data.val_filter.n=12",
    )
    return load(LOOP, [*more, *items, *urls, *folders]).settings


@contextmanager
def services(folder: Path) -> Iterator[Settings]:
    settings = settings_of(folder)
    with running(from_settings(settings), folder / "logs"):
        yield settings


def loop_of(settings: Settings, folder: Path) -> TrainerPart:
    tasks = TrainingTasks(settings, folder / "train.jsonl")
    tasks.steps_per_epoch, tasks.last_step = 50, 99
    return parts(PartContext(settings, None, tasks))[-1]


def begun(settings: Settings, folder: Path) -> TrainerPart:
    """Training after its second step, whose failures a round is made against."""
    made = loop_of(settings, folder)
    made.after_rollouts(2, [rolled_out(name) for name in task_ids("train", SEEN)])
    made.after_step(2)
    return made


def finished(made: TrainerPart, path: Path) -> list[Task]:
    deadline = time.monotonic() + 240
    while not round_file(path, 1).exists():
        assert time.monotonic() < deadline, "no round came to an end"
        time.sleep(0.2)
        made.after_step(3)
    made.close()
    return read_objectives(round_file(path, 1))


def share(tasks: list[Task]) -> float:
    needing = [task for task in tasks if any(a.split()[0] in NEVER_LEARNT for a in solution_of(task))]
    return len(needing) / len(tasks)


def test_the_tasks_are_of_what_the_policy_never_learnt_and_a_kill_changes_none(tmp_path: Path) -> None:
    with services(tmp_path / "whole") as settings:
        first = prepare(settings, [Task("note_add.k1.0", "pocket")] * 60)
        by_chance = share(first)
        whole = finished(begun(settings, tmp_path / "whole"), settings.task_manager.train_data_path)
    print(f"by chance {by_chance:.3f} of {len(first)}, with the loop {share(whole):.3f} of {len(whole)}")
    assert len(first) >= 60 and by_chance > 0 and len(whole) >= BUDGET // 2
    assert share(whole) >= 3 * by_chance
    with services(tmp_path / "killed") as settings:
        assert [t.query for t in prepare(settings, [Task("note_add.k1.0", "pocket")] * 60)] == [t.query for t in first]
        folder = settings.experiment_dir / "tasks" / "rounds"
        killed = begun(settings, tmp_path / "killed")
        process = killed._loops["pocket"]._background._process
        assert process is not None
        deadline = time.monotonic() + 120
        while not (folder / "store" / "journal.jsonl").exists() or not read_journal(folder / "store").get("verdict"):
            assert process.poll() is None and time.monotonic() < deadline, "it was to be killed in the middle"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        asked = json.loads((folder / RECORD).read_text())
        # The whole run is gone, and what it goes on from knows of no failures.
        again = loop_of(settings, tmp_path / "killed")
        again.after_step(2)
        resumed = finished(again, settings.task_manager.train_data_path)
        assert json.loads((folder / RECORD).read_text()) == asked and len(asked["rounds"]) == 1
    assert [(t.task_id, t.query, t.ground_truth) for t in resumed] == [
        (t.task_id, t.query, t.ground_truth) for t in whole
    ]
