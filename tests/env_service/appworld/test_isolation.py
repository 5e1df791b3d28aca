"""What an agent's code cannot reach, and what does not mix."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from env_service.environments.appworld import installation as installation_module
from env_service.environments.appworld import workers
from env_service.environments.appworld.env import AppworldEnv
from env_service.environments.appworld.installation import Installation
from env_service.environments.appworld.worker.sandbox import MEMORY_LIMIT_BYTES

pytestmark = pytest.mark.service
OpenEnv = Callable[..., AppworldEnv]


def output(env: AppworldEnv, code: str) -> str:
    return env.step({"role": "assistant", "content": f"```python\n{code}\n```"})["state"][0]["content"]


@pytest.fixture
def confined(open_env: OpenEnv) -> AppworldEnv:
    env = open_env("contactnumber_1")
    assert env._worker is not None
    status = Path(f"/proc/{env._worker.pid}/status").read_text()
    if "NoNewPrivs:\t1" not in status:
        pytest.skip("this kernel has no Landlock; the worker runs without its fence")
    return env


def test_the_answer_cannot_be_loaded_through_appworld_itself(open_env: OpenEnv) -> None:
    env = open_env("contactnumber_1")
    text = output(env, "from appworld.task import Task\nprint(Task.load(task_id='contactnumber_1').ground_truth.answer)")
    assert "ground_truth" in text
    assert "5550003333" not in text


def test_the_answer_cannot_be_read_from_disk(confined: AppworldEnv, tiny: Installation) -> None:
    answer = tiny.root / "data" / "tasks" / "contactnumber_1" / "ground_truth" / "answer.json"
    assert answer.is_file()
    text = output(confined, f"import pathlib\nprint(pathlib.Path({str(answer)!r}).read_text())")
    assert "Permission denied" in text
    others = output(confined, f"from appworld.evaluator import os\nprint(os.scandir({str(tiny.root / 'data' / 'tasks')!r}))")
    assert "Permission denied" in others


def test_neither_our_environment_nor_our_dotenv_reaches_the_agent(tiny: Installation, confined: AppworldEnv, tmp_path: Path) -> None:
    secret = tmp_path / ".env"
    secret.write_text("SECRET=1")
    assert "Permission denied" in output(confined, f"import pathlib\nprint(pathlib.Path({str(secret)!r}).read_text())")
    names = set(output(confined, "import os\nprint('\\n'.join(os.environ))").split())
    allowed = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "HOME", "TMPDIR", "IPYTHONDIR", "OMP_NUM_THREADS"}
    allowed |= {"APPWORLD_ROOT", "APPWORLD_CACHE", "PYTHON_DOTENV_DISABLED", "PAGER", "GIT_PAGER", "TERM", "COLUMNS", "LINES", "CLICOLOR"}
    allowed |= {"Output:", "```", "FORCE_COLOR", "CLICOLOR_FORCE"}
    assert names <= allowed


def test_the_package_does_not_load_our_dotenv(tiny: Installation, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("FROM_DOTENV=1")
    code = f"import dotenv, os; dotenv.load_dotenv({str(tmp_path / '.env')!r}); print(sorted(os.environ))"
    environment = workers._environment(tiny, tmp_path)
    done = subprocess.run([tiny.python, "-I", "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "FROM_DOTENV" not in done.stdout
    assert "APPWORLD_ROOT" in done.stdout


def test_the_network_is_closed(confined: AppworldEnv) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        text = output(confined, f"from appworld.requester import requests\nprint(requests.get({url!r}, timeout=2))")
    assert "Permission denied" in text or "Errno 13" in text


def test_memory_is_bounded_and_the_session_survives(open_env: OpenEnv) -> None:
    env = open_env("contactnumber_1")
    assert "MemoryError" in output(env, f"big = bytearray({2 * MEMORY_LIMIT_BYTES})")
    assert "alive" in output(env, "print('alive')")


def test_the_worker_knows_its_own_venv_and_nothing_of_ours(open_env: OpenEnv, tiny: Installation) -> None:
    env = open_env("contactnumber_1")
    code = "from appworld.requester import sys\nimport appworld\nprint('\\n'.join([appworld.__file__, *sys.path]))"
    lines = output(env, code).split()[2:-1]
    prefix = str(tiny.python.parent.parent)
    assert lines[0].startswith(prefix)
    repository = Path(installation_module.__file__).resolve().parents[3]
    ours = [line for line in lines[1:] if Path(line).is_relative_to(repository) and not line.startswith(prefix)]
    assert ours == []


def test_our_folder_does_not_shadow_the_package() -> None:
    spec = importlib.util.find_spec("appworld")
    assert spec is None or "environments" not in str(spec.origin)


def test_setup_does_nothing_the_second_time(tiny: Installation) -> None:
    folder, venv = Path(installation_module.__file__).parent, tiny.python.parent.parent
    marker = venv / ".agentevolver-lock"
    if not marker.exists() or marker.read_text() != (folder / "requirements.lock").read_text():
        pytest.skip("this venv was not made by this version of setup.sh")
    before = marker.stat().st_mtime_ns
    environment = os.environ | {"APPWORLD_VENV": str(venv)}
    done = subprocess.run(["bash", str(folder / "setup.sh")], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ready" in done.stdout
    assert marker.stat().st_mtime_ns == before
    assert subprocess.run(["bash", str(folder / "setup.sh"), "--nope"], capture_output=True).returncode == 2


def test_the_clock_stands_still_in_the_worker_and_not_here(open_env: OpenEnv) -> None:
    env = open_env("contactnumber_1")
    assert "2023-05-18" in output(env, "print(DateTime.now())")
    assert os.times().elapsed > 0
