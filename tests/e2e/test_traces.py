"""A run's own leavings are found, and those of others are not taken for them."""

import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from agentevolver.utils.processes import RUN_ID
from tests.e2e.traces import Traces

pytestmark = pytest.mark.service

LEAVES_THINGS = """
import socket, sys, tempfile
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(create=True, size=64)
resource_tracker.unregister(segment._name, "shared_memory")
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
print(segment.name, tempfile.mkdtemp(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def traces(tmp_path):
    made = Traces(lambda: "000000-000000-traces", tmp_path)
    yield made
    made.close()


def test_what_a_run_leaves_is_told_from_what_others_leave_meanwhile(traces, tmp_path):
    place = f"{tempfile.gettempdir()}/traces-{os.getpid()}.sock"
    others = Path(tempfile.mkdtemp(prefix="ray-of-others-", dir="/tmp"))
    theirs = SharedMemory(create=True, size=64)
    environ = os.environ | {RUN_ID: "000000-000000-traces", "TMPDIR": str(traces.folder)}
    command = [sys.executable, "-c", LEAVES_THINGS, place]
    run = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        segment, folder = run.stdout.readline().split()
        wanted = {f"/dev/shm/{segment}", folder, place}
        deadline = time.monotonic() + 60
        while traces.left() != wanted:
            assert time.monotonic() < deadline, traces.left()
            time.sleep(0.05)
        run.communicate("")
        assert traces.left() == wanted, "it ended without removing them"
        for left in (Path(f"/dev/shm/{segment}"), Path(place)):
            left.unlink()
        Path(folder).rmdir()
        assert traces.left() == set()
    finally:
        run.kill()
        run.communicate()
        theirs.close()
        theirs.unlink()
        others.rmdir()
        Path(place).unlink(missing_ok=True)
