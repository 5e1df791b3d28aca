"""What happens when something breaks: the worker, the fork server, the service, or the agent's manners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from appworld_tiny.catalogue import TASKS

from env_service.base import StepResult
from env_service.environments.appworld import env as env_module
from env_service.environments.appworld import workers
from env_service.environments.appworld.env import AppworldEnv
from env_service.environments.appworld.installation import Installation
from env_service.environments.appworld.workers import AppWorldWorker, ForkServerClient, WorkerDied, WorkerError

pytestmark = [pytest.mark.service, pytest.mark.chaos]
OpenEnv = Callable[..., AppworldEnv]
REPOSITORY = Path(workers.__file__).resolve().parents[3]


def run(env: AppworldEnv, code: str) -> StepResult:
    return env.step({"role": "assistant", "content": f"```python\n{code}\n```"})


def pid_of(env: AppworldEnv) -> int:
    assert env._worker is not None
    return env._worker.pid


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def server_pid(socket_path: Path) -> int:
    """The process whose command line names the socket, workers left aside."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command, status = (
                    (folder / "cmdline").read_bytes(),
                    (folder / "stat").read_text().rpartition(")")[2].split(),
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(socket_path).encode() in command and status[0] != "Z":
                found.append((int(folder.name), int(status[1])))
    pids = {pid for pid, _ in found}
    [server] = [pid for pid, parent in found if parent not in pids]
    return server


def test_an_endless_loop_is_stopped_and_the_session_goes_on(open_env: OpenEnv) -> None:
    env = open_env("balance_1", timeout_s=1)
    started = time.monotonic()
    result = run(env, "kept = 5\nwhile True:\n    pass")
    assert time.monotonic() - started < 10
    assert "timed out" in result["state"][0]["content"]
    assert not result["is_terminated"]
    assert "5" in run(env, "print(kept)")["state"][0]["content"]


SWALLOWS = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"


@pytest.mark.parametrize("code", ["sum(range(10**13))", SWALLOWS], ids=["deaf", "swallows"])
def test_code_that_is_deaf_to_the_time_limit_is_killed_and_what_was_saved_is_graded(
    open_env: OpenEnv, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(env_module, "KILL_AFTER_S", 1.0)
    task = TASKS["notecreate_1"]
    env = open_env(task.id, timeout_s=1, sparse=False)
    for block in task.reference()[:2]:
        run(env, block)
    pid = pid_of(env)
    result = run(env, code)
    assert (result["is_terminated"], result["info"]["stop_reason"]) == (True, "code_timeout")
    assert "did not stop" in result["state"][0]["content"]
    assert result["reward"] == 0.5  # the note is there, but the task was never completed
    assert is_gone(pid)


def test_a_worker_killed_between_steps_is_an_error_and_no_reward(open_env: OpenEnv) -> None:
    env = open_env("balance_1")
    pid = pid_of(env)
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: is_gone(pid))
    with pytest.raises(WorkerDied):
        run(env, "print(1)")
    with pytest.raises(WorkerDied, match="no grade"):
        env.evaluate()
    with pytest.raises(WorkerDied):
        run(env, "print(1)")


def test_a_worker_killed_in_the_middle_of_a_step_is_an_error_at_once(open_env: OpenEnv) -> None:
    env = open_env("balance_1", timeout_s=60)
    threading.Timer(0.5, os.kill, (pid_of(env), signal.SIGKILL)).start()
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="ended during `execute`"):
        run(env, "while True:\n    pass")
    assert time.monotonic() - started < 10
    fresh = open_env("balance_1")
    assert run(fresh, "apis.supervisor.complete_task(answer=250)")["reward"] == 1.0


def test_closing_leaves_no_process_and_no_file(open_env: OpenEnv) -> None:
    env = open_env("balance_1")
    assert env._folder is not None
    pid, folder = pid_of(env), env._folder.path
    run(env, "apis.supervisor.complete_task(answer=1)")
    assert any(folder.rglob("*.jsonl"))
    env.close()
    assert is_gone(pid)
    assert not folder.exists()
    env.close()


def test_closing_ends_a_worker_that_hangs(tiny: Installation) -> None:
    worker = AppWorldWorker(tiny)
    os.kill(worker.pid, signal.SIGSTOP)
    started = time.monotonic()
    worker.close()
    assert time.monotonic() - started < 5
    assert is_gone(worker.pid)


def test_a_failed_operation_is_attributed(tiny: Installation) -> None:
    with AppWorldWorker(tiny) as worker:
        with pytest.raises(ValueError, match="no world is open"):
            worker.ask("state")
        with pytest.raises(ValueError, match="unknown operation 'dance'"):
            worker.ask("dance")
        with pytest.raises(WorkerError, match="FileNotFoundError"):
            worker.ask("grade", task_id="nope_1", directory=str(Path("/nonexistent")))


def test_data_that_cannot_be_read_is_an_error_of_the_environment(
    tiny: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = AppworldEnv("balance_1", "i")
    monkeypatch.setattr(env, "task_id", "absent_1")
    with pytest.raises(WorkerError):
        env.get_init_state()
    env.close()


def test_a_python_without_appworld_is_named_in_the_error(tiny: Installation) -> None:
    wrong = Installation(Path(sys.executable), tiny.root)
    with pytest.raises(WorkerError, match="No module named 'appworld'"):
        AppWorldWorker(wrong)


def test_when_the_fork_server_is_killed_its_workers_go_and_the_next_episode_starts_a_new_one(
    open_env: OpenEnv, tiny: Installation
) -> None:
    env = open_env("balance_1")
    server = ForkServerClient.of(tiny)
    before = server_pid(server.socket_path)
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: is_gone(pid_of(env)))
    with pytest.raises(WorkerDied):
        run(env, "print(1)")
    assert run(open_env("balance_1"), "apis.supervisor.complete_task(answer=250)")["reward"] == 1.0
    assert server_pid(server.socket_path) != before


KILLED_CLIENT = """
import os, signal, sys, tempfile
from env_service.environments.appworld import workers
from env_service.environments.appworld.env import AppworldEnv
workers.GRACE_S = 0.5
env = AppworldEnv("balance_1", "i")
env.get_init_state()
server = workers.ForkServerClient.of(env._installation)
print(env._worker.pid, env._folder.path, server.socket_path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_service_that_is_killed_leaves_no_process_and_the_next_one_sweeps_its_folder(
    tiny: Installation, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short_tmp / "k"
    folder.mkdir()
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_CLIENT], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, episode, socket_path = done.stdout.split()
    assert wait_until(lambda: is_gone(int(pid)))
    assert wait_until(lambda: not Path(socket_path).exists())
    assert Path(episode).exists()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert workers.sweep() == 1
    assert not Path(episode).exists()
