"""Every task of the tiny world, four ways: solved, untouched, done wrongly, overdone. Two episodes run at any time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from appworld_tiny.catalogue import TASKS, split_ids
from appworld_tiny.task import TinyTask

from env_service.environments.appworld.env import AppworldEnv, baseline
from env_service.environments.appworld.installation import Installation
from env_service.registry import resolve

pytestmark = pytest.mark.service


class PlayedBlocks(NamedTuple):
    """What an episode was worth."""

    reward: float
    sparse: float
    dense: float
    failures: list[str]
    observations: str


def play(task_id: str, blocks: list[str]) -> PlayedBlocks:
    env = AppworldEnv(task_id, "play")
    try:
        env.get_init_state()
        results = [env.step({"role": "assistant", "content": f"```python\n{block}\n```"}) for block in blocks]
        checks = env.get_info(params={"what": "checks"})
        observations = "\n".join(result["state"][0]["content"] for result in results)
        assert results[-1]["is_terminated"], observations
        return PlayedBlocks(
            results[-1]["reward"],
            env.evaluate(),
            env.evaluate(params={"sparse": False}),
            checks["failures"],
            observations,
        )
    finally:
        env.close()


@pytest.fixture(scope="module")
def outcomes(tiny: Installation) -> Iterator[dict[tuple[str, str], Future[PlayedBlocks]]]:
    """The outcome of every task and way; the tests wait for theirs while the others go on."""
    ways = {
        "reference": TinyTask.reference,
        "untouched": lambda _: ["apis.supervisor.complete_task()"],
        "wrong": TinyTask.wrong,
        "excessive": TinyTask.excessive,
    }
    with ThreadPoolExecutor(2) as pool:
        yield {
            (task.id, way): pool.submit(play, task.id, blocks(task))
            for way, blocks in ways.items()
            for task in TASKS.values()
        }


each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
Outcomes = dict[tuple[str, str], Future[PlayedBlocks]]


@each_task
def test_the_reference_solution_scores_one(outcomes: Outcomes, task: TinyTask) -> None:
    outcome = outcomes[task.id, "reference"].result()
    assert (outcome.reward, outcome.sparse, outcome.dense) == (1.0, 1.0, 1.0), outcome


@each_task
def test_a_wrong_answer_or_deed_scores_zero(outcomes: Outcomes, task: TinyTask) -> None:
    outcome = outcomes[task.id, "wrong"].result()
    assert (outcome.reward, outcome.sparse) == (0.0, 0.0), outcome
    assert outcome.dense < 1.0
    assert "Execution failed" not in outcome.observations


@each_task
def test_a_side_effect_is_caught(outcomes: Outcomes, task: TinyTask) -> None:
    outcome = outcomes[task.id, "excessive"].result()
    assert (outcome.reward, outcome.sparse) == (0.0, 0.0), outcome
    assert outcome.failures
    assert "Execution failed" not in outcome.observations


def test_the_baseline_is_what_the_labels_of_the_checks_say(tiny: Installation) -> None:
    for task in list(TASKS.values())[::4]:
        assert baseline(tiny, task.id) == sum(check.holds_untouched for check in task.all_checks), task.id


def test_a_split_is_listed_in_the_order_of_its_file(tiny: Installation) -> None:
    for split, file in {
        "train": "train",
        "val": "dev",
        "test": "test_normal",
        "test_challenge": "test_challenge",
    }.items():
        assert AppworldEnv.get_query_list(split) == split_ids(file)


def test_listing_tasks_starts_nothing_and_leaves_nothing_behind(tiny: Installation, short_tmp: Path) -> None:
    folder = short_tmp / "listing"
    folder.mkdir()
    environ = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = [
        {"env_type": "appworld", "split": split, "params": params}
        for split, params in (("train", {}), ("dev", {"difficulty": 1}))
    ]
    request = json.dumps({"classes": resolve(["appworld"]), "lists": asked})
    command = [sys.executable, "-m", "env_service.listing"]
    done = subprocess.run(command, input=request, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [] and list(folder.iterdir()) == []


def test_a_split_can_be_narrowed_to_a_difficulty(tiny: Installation) -> None:
    hard = AppworldEnv.get_query_list("train", {"difficulty": 3})
    assert hard == [task for task in split_ids("train") if TASKS[task].difficulty == 3]
    assert hard
