"""Processes are recognised for what they are, and no other one is ever hit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentevolver.utils.processes import RUN_ID, SERVICE, ProcessId, carriers, end, end_carriers, identify
from tests.agentevolver.launcher.fakes import until

pytestmark = pytest.mark.service

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


class Sleeper:
    def __init__(self, argv: list[str], **env: str) -> None:
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **env})
        assert self.process.stdout is not None
        self.process.stdout.readline()
        identity = identify(self.process.pid)
        assert identity is not None
        self.identity = identity

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    one = Sleeper(SLEEP)
    yield one
    one.close()


def test_this_process_is_itself_and_alive() -> None:
    identity = identify(os.getpid())
    assert identity is not None and identity.pid == os.getpid() and identity.alive


def test_a_process_that_was_not_reaped_counts_as_gone(sleeper: Sleeper) -> None:
    os.kill(sleeper.identity.pid, signal.SIGKILL)
    until(lambda: not sleeper.identity.alive)
    assert os.path.exists(f"/proc/{sleeper.identity.pid}"), "still a zombie: that is the point"
    assert identify(sleeper.identity.pid) is None


def test_a_reused_pid_is_not_hit(sleeper: Sleeper) -> None:
    earlier = ProcessId(sleeper.identity.pid, sleeper.identity.start_ticks - 1)
    assert not earlier.alive
    assert end({earlier}, grace_s=0.1) == set()
    assert sleeper.identity.alive


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    one = Sleeper(STUBBORN)
    try:
        assert end({one.identity}, grace_s=0.2) == set()
        assert one.process.wait(5) == -signal.SIGKILL
    finally:
        one.close()


def test_a_process_that_obeys_is_not_killed(sleeper: Sleeper) -> None:
    assert end({sleeper.identity}, grace_s=10.0) == set()
    assert sleeper.process.wait(5) == -signal.SIGTERM


def test_carriers_are_found_by_run_and_by_service() -> None:
    first = Sleeper(SLEEP, **{RUN_ID: "run-a", SERVICE: "ray"})
    second = Sleeper(SLEEP, **{RUN_ID: "run-a", SERVICE: "main"})
    other = Sleeper(SLEEP, **{RUN_ID: "run-ab", SERVICE: "ray"})
    try:
        assert carriers("run-a") == {first.identity, second.identity}
        assert carriers("run-a", "main") == {second.identity}
        assert end_carriers("run-a", grace_s=5.0) == set()
        assert other.identity.alive, "an id that merely begins the same is another run's"
    finally:
        for one in (first, second, other):
            one.close()


def test_a_process_that_left_its_parent_and_session_is_found_and_ended() -> None:
    code = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, RUN_ID: "daemon-run"}
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.wait(5)
    (daemon,) = carriers("daemon-run")
    assert daemon.pid != process.pid
    assert end_carriers("daemon-run", grace_s=5.0) == set()
    assert not daemon.alive
    process.stdout.close()


def test_a_process_that_renames_itself_is_still_found() -> None:
    code = (
        "import setproctitle, time; setproctitle.setproctitle('ray::' + 'x' * 4000); print('up', flush=True); "
        "time.sleep(600)"
    )
    one = Sleeper([sys.executable, "-c", code], **{RUN_ID: "renamed-run", "SPT_NOENV": "1"})
    try:
        assert carriers("renamed-run") == {one.identity}
    finally:
        one.close()


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
