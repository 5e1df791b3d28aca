"""The fork server and its executable, with processes of their own; Ray and vLLM in the end-to-end tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentevolver.trainer.preload import SOCKET, executable_of, write_executable

pytestmark = pytest.mark.service

# A fork server that has imported one module of no consequence, which the real Python does not import by itself.
FORK_SERVER = "import agentevolver.trainer.preload.__main__ as server; server.FOREIGN = ('this',); server.main()"
SPAWNED = "--multiprocessing-fork"


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    path = tmp_path / "forks"
    write_executable(path)
    return path


@pytest.fixture
def fork_server(socket_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", FORK_SERVER, str(socket_path)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not socket_path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


def start(socket_path: Path, code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [str(executable_of(socket_path)), "-B", "-X", "utf8", "-c", code, SPAWNED, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_process_comes_out_of_the_fork_server_as_it_was_asked_for(
    fork_server: subprocess.Popen[bytes], socket_path: Path, tmp_path: Path
) -> None:
    read, write = os.pipe()
    code = f"""import os, sys
os.write({write}, b'here')
print('this' in sys.modules, sys.argv, os.environ['MINE'], os.getcwd(), os.getppid())
print(open('/proc/self/cmdline').read())"""
    process = start(
        socket_path, code, "x y", cwd=tmp_path, env={"MINE": "1", SOCKET: str(socket_path)}, pass_fds=(write,)
    )
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert out.split("\n")[0] == f"True {['-c', SPAWNED, 'x y']} 1 {tmp_path} {fork_server.pid}"
    assert out.split("\n")[1].startswith(f"{sys.executable} -c import os")
    os.close(write)
    assert os.read(read, 10) == b"here"
    os.close(read)


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_its_end_is_the_end_of_the_executable(
    fork_server: subprocess.Popen[bytes], socket_path: Path, code: str, status: int
) -> None:
    process = start(socket_path, code)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert ("ZeroDivisionError" in err) is (status == 1)


def test_signals_are_passed_on_and_a_lost_client_takes_its_process_along(
    fork_server: subprocess.Popen[bytes], socket_path: Path
) -> None:
    code = (
        "import os, signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print(os.getpid(), flush=True); "
        "time.sleep(60)"
    )
    asked, killed = start(socket_path, code), start(socket_path, code)
    assert asked.stdout is not None and killed.stdout is not None
    asked.stdout.readline()
    forked = int(killed.stdout.readline())
    asked.send_signal(signal.SIGTERM)
    assert asked.wait(30) == 5
    killed.kill()
    killed.wait(30)
    assert ended(forked)
    asked.communicate()
    killed.communicate()


def test_the_end_of_the_fork_server_is_the_end_of_what_it_forked(
    fork_server: subprocess.Popen[bytes], socket_path: Path
) -> None:
    process = start(socket_path, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout is not None
    forked = int(process.stdout.readline())
    fork_server.kill()
    assert process.wait(30) != 0
    assert ended(forked)
    process.communicate()


def test_without_a_fork_server_the_real_python_does_it(socket_path: Path) -> None:
    out, _ = start(socket_path, "import sys; print('this' in sys.modules)").communicate(timeout=30)
    assert out == "False\n"


def ended(pid: int, timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
