"""Processes are recognised for what they are, and no other one is ever hit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentevolver.utils.processes import RUN_ID, SERVICE, carriers, end, end_carriers, identify
from tests.agentevolver.launcher.fakes import Sleeper, until

pytestmark = pytest.mark.service


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    with Sleeper() as one:
        yield one


def test_a_process_that_was_not_reaped_counts_as_gone(sleeper: Sleeper) -> None:
    os.kill(sleeper.identity.pid, signal.SIGKILL)
    until(lambda: not sleeper.identity.alive)
    assert os.path.exists(f"/proc/{sleeper.identity.pid}"), "still a zombie: that is the point"
    assert identify(sleeper.identity.pid) is None


def test_a_process_that_obeys_is_not_killed(sleeper: Sleeper) -> None:
    assert end({sleeper.identity}, grace_s=10.0) == set()
    assert sleeper.process.wait(5) == -signal.SIGTERM


def test_carriers_are_found_by_run_and_by_service() -> None:
    with (
        Sleeper(**{RUN_ID: "run-a", SERVICE: "ray"}) as first,
        Sleeper(**{RUN_ID: "run-a", SERVICE: "main"}) as second,
        Sleeper(**{RUN_ID: "run-ab", SERVICE: "ray"}) as other,
    ):
        assert carriers("run-a") == {first.identity, second.identity}
        assert carriers("run-a", "main") == {second.identity}
        assert end_carriers("run-a", grace_s=5.0) == set()
        assert other.identity.alive, "an id that merely begins the same is another run's"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_parent_also_after_exec_and_in_a_session_of_its_own(number: signal.Signals) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from functools import partial\n"
        "from agentevolver.utils.processes import die_with_parent\n"
        "tell = 'import time; print(\"up\", flush=True); time.sleep(600)'\n"
        f"dying = partial(die_with_parent, os.getpid(), {int(number)})\n"
        "subprocess.Popen([sys.executable, '-c', tell], start_new_session=True, preexec_fn=dying)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, RUN_ID: "parent-run"}
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    (child,) = {process for process in carriers("parent-run") if process.pid != parent.pid}
    parent.kill()
    parent.communicate()
    until(lambda: not child.alive)
