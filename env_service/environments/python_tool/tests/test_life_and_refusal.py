"""Where the sandbox cannot be set up nothing runs, where it can it runs as any user, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from env_service.environments.python_tool.env import PythonEnv
from env_service.environments.python_tool.sandbox import host
from env_service.environments.python_tool.sandbox.host import Sandbox, SandboxLimits, SandboxUnavailable
from env_service.environments.python_tool.tests.no_namespaces import FORBID_NAMESPACES

from .processes import family, gone

pytestmark = pytest.mark.service

REPOSITORY = Path(__file__).resolve().parents[4]
SYSTEM_PYTHON = "/usr/bin/python3"


def _python(source: str, *prefix: str, executable: str = sys.executable) -> subprocess.CompletedProcess[str]:
    program = f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n{textwrap.dedent(source)}"
    return subprocess.run(
        [*prefix, executable, "-c", program], capture_output=True, text=True, timeout=60, cwd="/", check=False
    )


def test_without_namespaces_the_sandbox_is_refused_with_the_reason_and_the_remedy() -> None:
    source = f"""
    {FORBID_NAMESPACES}
    from env_service.environments.python_tool.sandbox.host import Sandbox, SandboxUnavailable
    from env_service.environments.python_tool.sandbox.host import SandboxLimits
    try:
        Sandbox(SandboxLimits()).run("print('ran')")
    except SandboxUnavailable as error:
        print(error)
    """
    done = _python(source)
    assert "refusing to run code without a sandbox" in done.stdout
    assert "unshare namespaces: EPERM" in done.stdout
    assert "user.max_user_namespaces" in done.stdout
    assert "ran" not in done.stdout.split()


def test_without_namespaces_the_environment_fails_at_creation() -> None:
    source = f"""
    {FORBID_NAMESPACES}
    from env_service.environments.python_tool.env import PythonEnv
    env = PythonEnv("train.primes.L1.0", "i")
    try:
        env.get_init_state()
    except Exception as error:
        print(type(error).__name__)
    env.close()
    """
    assert _python(source).stdout == "SandboxUnavailable\n"


@pytest.mark.parametrize(
    ("missing", "leak"),
    [
        ("launcher.seccomp.install = lambda threads: None", "a socket can be opened; a process can be created"),
        ("launcher.view.enter = lambda packages, size: None; launcher.view.SCRATCH = '/'", "host files are visible"),
        (
            "launcher.linux.drop_capabilities = lambda: None; launcher.layers.spare_uid = lambda: 0",
            "privileges are left",
        ),
    ],
)
def test_a_sandbox_that_lacks_a_layer_fails_its_own_test(
    monkeypatch: pytest.MonkeyPatch, missing: str, leak: str
) -> None:
    patched = f"from sandbox import launcher; {missing}; main = launcher.main;"
    monkeypatch.setattr(host, "_BOOT", host._BOOT.replace("from sandbox.launcher import main;", patched))
    sandbox = Sandbox(SandboxLimits())
    with pytest.raises(SandboxUnavailable, match=leak):
        sandbox.wait_ready()


def test_a_launcher_that_breaks_is_reported_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_BOOT", "raise SystemExit('no such thing')")
    with pytest.raises(SandboxUnavailable, match="no such thing"):
        Sandbox(SandboxLimits()).run("1")


def test_a_memory_limit_that_the_service_cannot_hand_down_is_refused_and_not_lowered() -> None:
    source = """
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    from env_service.environments.python_tool.sandbox.host import Sandbox, SandboxUnavailable
    from env_service.environments.python_tool.sandbox.host import SandboxLimits
    try:
        Sandbox(SandboxLimits(memory_mb=4096)).wait_ready()
    except SandboxUnavailable as error:
        print(error)
    """
    assert "4096 MB of memory, but its parent's limit is 1024" in _python(source).stdout


PROBE = """
    from env_service.environments.python_tool.sandbox.host import Sandbox
    from env_service.environments.python_tool.sandbox.host import SandboxLimits
    sandbox = Sandbox(SandboxLimits())
    print(sandbox.run("import os; print(os.getuid(), os.getpid(), os.path.exists('/etc/passwd'))").output.strip())
    print(sandbox.run("import socket; socket.socket()").detail, sandbox.run("import os; os.fork()").detail)
    threads = "import threading, time\\nfor i in range(200): threading.Thread(target=time.sleep, args=(2,), \
daemon=True).start()"
    print(sandbox.run(threads).detail)
    sandbox.close()
"""
CONTAINED = "1000 1 False\nPermissionError PermissionError\nRuntimeError\n"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to become someone else"
)


@needs_root
@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason="needs a Python that every user can read")
def test_an_ordinary_user_gets_the_same_containment_through_a_user_namespace() -> None:
    done = _python(PROBE, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", executable=SYSTEM_PYTHON)
    assert done.stdout == CONTAINED, done.stderr


@needs_root
def test_root_without_the_right_to_mount_goes_the_way_of_an_ordinary_user() -> None:
    done = _python(PROBE, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
    assert done.stdout == CONTAINED, done.stderr


def test_close_leaves_no_process_even_while_code_runs(start: Callable[..., Sandbox]) -> None:
    sandbox = start(wall_s=0.3)
    sandbox.wait_ready()
    processes = family(sandbox.launcher_pid)
    assert len(processes) == 2
    sandbox.run("while True: pass")
    sandbox.close()
    assert gone(processes)


def test_an_unfinished_start_is_closed_without_remains() -> None:
    sandbox = Sandbox(SandboxLimits())
    launcher = psutil.Process(sandbox.launcher_pid)
    sandbox.close()
    assert gone([launcher])


def test_the_interpreter_dies_with_its_launcher(start: Callable[..., Sandbox]) -> None:
    sandbox = start(wall_s=3.0)
    sandbox.wait_ready()
    processes = family(sandbox.launcher_pid)
    os.kill(sandbox.launcher_pid, signal.SIGKILL)
    assert sandbox.run("while True: pass").status == "died"
    assert gone(processes)


def test_nothing_outlives_a_service_that_is_killed() -> None:
    source = f"""
    import sys, time
    sys.path.insert(0, {str(REPOSITORY)!r})
    from env_service.environments.python_tool.sandbox.host import Sandbox
    from env_service.environments.python_tool.sandbox.host import SandboxLimits
    sandbox = Sandbox(SandboxLimits(wall_s=60))
    sandbox.wait_ready()
    print(sandbox.launcher_pid, flush=True)
    sandbox.run("while True: pass")
    """
    service = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True, cwd="/"
    )
    assert service.stdout is not None
    processes = family(int(service.stdout.readline()))
    service.kill()
    service.wait()
    service.stdout.close()
    assert len(processes) == 2
    assert gone(processes)


def test_an_environment_started_ahead_uses_the_waiting_sandbox() -> None:
    PythonEnv.warm_up()
    PythonEnv.warm_up()
    first, second = PythonEnv("train.primes.L1.0", "a"), PythonEnv("train.primes.L1.0", "b")
    try:
        pids = {env._sandbox.launcher_pid for env in (first, second)}
        assert len(pids) == 2
        assert first.get_init_state()["state"] == second.get_init_state()["state"]
    finally:
        first.close()
        second.close()
