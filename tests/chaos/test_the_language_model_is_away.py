"""A language model that is away for a while, while tasks are made and while the policy is trained: the run waits, and
nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from agentevolver.utils.files import read_jsonl
from tests.e2e.runs import ROOT, Launched, free_port, launch

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1200)]

AWAY_S = 60
SEEDS = 40


class Teacher:
    """The built-in teacher, served by somebody else: the launcher neither starts it nor brings it back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"http://127.0.0.1:{port}/v1"
        self.come()

    def come(self) -> None:
        # Slow, so that there is time to take it away while tasks are made.
        command = [
            sys.executable,
            "-m",
            "agentevolver.recipes.offline.teacher",
            "--port",
            str(self._port),
            "--delay",
            "0.2",
        ]
        self._process = subprocess.Popen(command, cwd=ROOT)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError):
                httpx.get(self.url, timeout=1, trust_env=False)
                return
            time.sleep(0.2)
        raise AssertionError("the teacher does not come up")

    def go(self) -> None:
        self._process.kill()
        self._process.wait()

    def be_away(self) -> None:
        self.go()
        time.sleep(AWAY_S)
        self.come()


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    one = Teacher(free_port())
    yield one
    one.go()


def explored(run: Launched) -> int:
    path = run.directory / "tasks" / "tasks_explored.train.jsonl.d" / "journal.jsonl"
    return path.read_text().count('{"kind":"exploration"') if path.exists() else 0


def test_a_run_waits_for_its_language_model(teacher: Teacher, tmp_path: Path) -> None:
    run = launch(
        tmp_path,
        "away",
        f"llm.base_url={teacher.url}",
        "llm.api_key_env=null",
        "task_manager.n=1",
        f"task_manager.max_seed_tasks={SEEDS}",
        "task_manager.num_explore_threads=2",
        "task_manager.mixture.synthetic_data_ratio=1",
        "attribution_driven_credit_assignment.enable=true",
        "trainer.total_training_steps=500",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
    )
    try:
        run.wait_for(lambda: explored(run), "first exploration", 300)
        teacher.be_away()
        assert explored(run) < SEEDS, "the teacher was taken away while tasks were made"
        run.wait_for(lambda: 2 in run.steps_done(), "second step", 600)
        first = read_jsonl(run.directory / "metrics.jsonl")[0]
        assert first["questioning/explored"] == SEEDS and first.get("questioning/failed", 0) == 0

        teacher.go()
        time.sleep(AWAY_S)
        done = max(run.steps_done())
        teacher.come()
        run.wait_for(lambda: max(run.steps_done()) >= done + 3, "three more steps", 300)
    finally:
        run.end()
    records = read_jsonl(run.directory / "metrics.jsonl")
    assert sum(record.get("prm/failed/unavailable", 0) + record.get("prm/failed/timeout", 0) for record in records) == 0
    told = (run.directory / "logs" / "driver.log").read_text()
    assert told.count("calls wait for it") == told.count("answers again") == 1
