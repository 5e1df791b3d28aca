"""A run that is killed at random moments and resumed says what a run says that nobody disturbed, the pool of experience
included."""

import random
import signal
import time
from pathlib import Path

import pytest

from agentevolver.utils.processes import send
from benchmarks.digests import differing
from tests.e2e.conftest import Finished, whole_loop  # noqa: F401
from tests.e2e.runs import Launched, launch
from tests.e2e.whole_loop import WANTED, said

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1500)]

KILLS = 3
# With a checkpoint every other step most kills cost steps that are then done again.
SAVED = ("trainer.save_freq=2",)


def kill_everything(run: Launched) -> None:
    """As the power going out would: the launcher first, which would else stop the others in order."""
    run.process.kill()
    run.process.wait()
    for process in run.processes():
        send(process, signal.SIGKILL)


def test_a_run_killed_at_three_random_moments_says_what_an_undisturbed_one_says(
    whole_loop: Finished,  # noqa: F811
    tmp_path: Path,
) -> None:
    chance = random.Random()
    told = []
    for _ in range(KILLS):
        run = launch(tmp_path, "killed", *WANTED, *SAVED)
        try:
            # Not before there is a checkpoint, else there is nothing to resume; then at any moment of some steps.
            run.wait_for(
                lambda run=run: run.steps_done() and run.checkpointed(), "a step of this launch, and a checkpoint"
            )
            moment = chance.uniform(0.0, 4.0)
            time.sleep(moment)
            told.append(f"{moment:.2f} s on, after step {max(run.steps_done())}, checkpoint {run.checkpointed()}")
            kill_everything(run)
        finally:
            run.end()
    last = launch(tmp_path, "killed", *WANTED, *SAVED)
    try:
        assert last.wait() == 0, last.output
        assert differing(said(whole_loop.directory), said(last.directory)) == [], told
    finally:
        last.end()
