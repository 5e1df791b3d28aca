"""kill -9 of the launcher at random moments of one run: within seconds nothing of the run is left, and the same command
goes on with it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from agentevolver.utils.files import read_jsonl
from agentevolver.utils.processes import ProcessId, identify, send
from tests.e2e.runs import ROOT, Launched

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]

# How long processes, and bytes in /dev/shm, may outlive their launcher; on a machine that does much else at the time.
WITHIN_S = 10.0
RECORDS = ROOT / ".agentevolver" / "run"
STEPS = 24
WANTED = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
)


def guard_of(run: Launched) -> ProcessId:
    (found,) = (
        child
        for child in psutil.Process(run.process.pid).children()
        if "agentevolver.launcher.guard" in child.cmdline()
    )
    identity = identify(found.pid)
    assert identity is not None
    return identity


def kill(run: Launched, *along: ProcessId) -> None:
    """Kill the launcher, and other processes just before."""
    for process in along:
        send(process, signal.SIGKILL)
    run.process.kill()
    run.process.wait()


def nothing_is_left(run: Launched) -> None:
    """Wait until nothing of the run is left, its record included."""
    began = time.monotonic()
    while any(left := (run.processes(), run.left_behind(), {path.name for path in RECORDS.glob(f"{run.run_id}*")})):
        assert time.monotonic() - began < WITHIN_S, (
            f"{WITHIN_S:g} s after its launcher was killed a run has left {left}"
        )
        time.sleep(0.1)


def test_nothing_outlives_a_killed_launcher_and_the_same_command_goes_on(
    started: Callable[..., Launched],
) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    dice = random.Random(seed)
    print(f"seed of the moments: {seed}")
    run = started(*WANTED)
    run.wait_for(lambda: run._run_id() is not None, "run's id", 120)
    moments = {"while it starts": dice.uniform(0, 25), "while it learns": dice.uniform(0, 12)}
    for when, wait_s in moments.items():
        if when == "while it learns":
            # The first launch may have left a checkpoint already: a step of this one says that this one is under way.
            run.wait_for(lambda run=run: run.steps_done() and run.checkpointed(), "a checkpoint to go on from", 600)  # type: ignore[misc]
        time.sleep(wait_s)
        kill(run)
        nothing_is_left(run)
        assert "was killed: ended" in run.output
        run = started(*WANTED)

    run.wait_for(lambda: run.steps_done(), "a step", 600)
    time.sleep(dice.uniform(0, 5))
    kill(run, guard_of(run))
    time.sleep(WITHIN_S)
    last = started(*WANTED)
    assert last.wait(600) == 0, last.output
    assert f"run {run.run_id}: its launcher was killed" in last.output
    for one in (run, last):
        assert one.processes() == one.left_behind() == set()
    assert [record["step"] for record in read_jsonl(last.directory / "metrics.jsonl")] == list(range(1, STEPS + 1))
