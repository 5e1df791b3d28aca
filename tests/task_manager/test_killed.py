"""Kill -9 while it explores, synthesises or verifies: nothing that was finished is done again, nothing is lost, nothing
is doubled.

Of what was paid for, at most the call is asked again that was under way in each exploration.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from task_manager.journal import read_journal
from task_manager.tasks import read_objectives
from tests.llm.hostile_server import paid_twice
from tests.llm.serving import served

# Of questioning_driver: steps of an exploration, and explorations at once.
STEPS, AT_ONCE = 6, 2
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def start(folder, how):
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    command = [sys.executable, str(HERE / "questioning_driver.py"), str(folder), str(how)]
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(folder, how=0):
    process = start(folder, how)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return read_objectives(folder / "tasks.jsonl")


def calls(folder):
    """What the models were asked so far; a line that is being written, or was cut off by a kill, is no call yet."""
    path = folder / "calls"
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def journalled(folder, kind):
    path = folder / "store" / "journal.jsonl"
    return len(read_journal(folder / "store").get(kind, {})) if path.exists() else 0


def kill_when(folder, condition, how=0.01):
    """Start a run and kill it as soon as the condition holds."""
    process = start(folder, how)
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.003)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.service
@pytest.mark.chaos
@pytest.mark.parametrize(
    "moments",
    [
        [("exploration", 4), ("exploration", 8)],
        [("verdict", 5), ("verdict", 11), ("synthesis", 9)],
    ],
    ids=["exploring", "verifying and synthesising"],
)
def test_a_killed_run_goes_on_where_it_was(tmp_path, undisturbed, moments):
    for kind, count in moments:
        kill_when(tmp_path, lambda kind=kind, count=count: journalled(tmp_path, kind) >= count)
    before = read_journal(tmp_path / "store")
    asked_before = len(calls(tmp_path))
    tasks = finish(tmp_path)
    again = calls(tmp_path)[asked_before:]

    explored = {(value["world"]["seed_task_id"], value["number"]) for value in before["exploration"].values()}
    assert explored
    asked_twice = Counter(seed for head, seed, _ in calls(tmp_path) if head == "role: explorer/act")
    assert len(asked_twice) == 12 * STEPS, "each step has a seed of its own"
    assert asked_twice.total() - len(asked_twice) <= AT_ONCE * len(moments), (
        "nothing is asked again but what was under way"
    )
    assert not list((tmp_path / "store" / "under_way").iterdir())
    assert sum(head == "role: synthesiser/tasks" for head, _, _ in again) == 12 - len(before.get("synthesis", {}))

    assert Counter(task.query for task in tasks) == Counter(task.query for task in undisturbed), (
        "no task is lost or doubled"
    )
    assert len({task.task_id for task in tasks}) == len(tasks)
    kept_before = {v["task"]["task_id"]: v["task"]["query"] for v in before.get("decision", {}).values() if v["task"]}
    assert kept_before.items() <= {task.task_id: task.query for task in tasks}.items(), "what was kept keeps its name"


@pytest.mark.service
def test_nothing_that_was_paid_for_is_asked_twice(tmp_path):
    log, moments = tmp_path / "asked.jsonl", [40, 110]
    with served("--temper=latency_s=0.02-0.04", f"--log={log}") as address:
        for count in moments:
            kill_when(
                tmp_path,
                lambda count=count: log.exists() and log.read_bytes().count(b"\n") >= count,
                f"{address}/v1",
            )
        tasks = finish(tmp_path, f"{address}/v1")
    under_way = 5  # two explorations, and of two others one that is synthesised from and two proposals of the other
    assert len(tasks) > 10 and paid_twice(log).total() <= under_way * len(moments)
