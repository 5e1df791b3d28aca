"""What an agent's code cannot reach, and what does not mix."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from env_service.environments.appworld import installation as installation_module
from env_service.environments.appworld import workers
from env_service.environments.appworld.env import AppworldEnv
from env_service.environments.appworld.installation import Installation
from env_service.environments.appworld.worker.walls import MEMORY_LIMIT_BYTES, RootUnreadable, demand_readable
from env_service.environments.python_tool.tests.no_namespaces import FORBID_NAMESPACES

pytestmark = pytest.mark.service
REPOSITORY = Path(__file__).resolve().parents[4]
THREADS = 64
OpenEnv = Callable[..., AppworldEnv]


def output(env: AppworldEnv, code: str) -> str:
    return env.step({"role": "assistant", "content": f"```python\n{code}\n```"})["state"][0]["content"]


@pytest.fixture
def confined(open_env: OpenEnv) -> AppworldEnv:
    return open_env("contactnumber_1")


def test_the_answer_cannot_be_loaded_through_appworld_itself(open_env: OpenEnv) -> None:
    env = open_env("contactnumber_1")
    text = output(
        env, "from appworld.task import Task\nprint(Task.load(task_id='contactnumber_1').ground_truth.answer)"
    )
    assert "ground_truth" in text
    assert "5550003333" not in text


def test_the_answer_cannot_be_read_from_disk(confined: AppworldEnv, tiny: Installation) -> None:
    answer = tiny.root / "data" / "tasks" / "contactnumber_1" / "ground_truth" / "answer.json"
    assert answer.is_file()
    text = output(confined, f"import pathlib\nprint(pathlib.Path({str(answer)!r}).read_text())")
    assert "No such file" in text
    others = output(
        confined,
        "from appworld.evaluator import os\nprint([found.name for found in "
        f"os.scandir({str(tiny.root / 'data' / 'tasks')!r})])",
    )
    assert '["contactnumber_1"]' in others


def test_neither_our_environment_nor_our_dotenv_reaches_the_agent(
    tiny: Installation, confined: AppworldEnv, tmp_path: Path
) -> None:
    secret = tmp_path / ".env"
    secret.write_text("SECRET=1")
    assert "No such file" in output(confined, f"import pathlib\nprint(pathlib.Path({str(secret)!r}).read_text())")
    names = set(output(confined, "import os\nprint('\\n'.join(os.environ))").split())
    allowed = {
        "PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LD_LIBRARY_PATH",
        "TZ",
        "HOME",
        "TMPDIR",
        "IPYTHONDIR",
        "OMP_NUM_THREADS",
    }
    allowed |= {
        "APPWORLD_ROOT",
        "APPWORLD_CACHE",
        "PYTHON_DOTENV_DISABLED",
        "PAGER",
        "GIT_PAGER",
        "TERM",
        "COLUMNS",
        "LINES",
        "CLICOLOR",
    }
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
    assert "not permitted" in text or "Errno 1]" in text


LIBC = "from appworld.requester import sys\nctypes = sys.modules['ctypes']\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def test_no_socket_of_any_kind_is_had(confined: AppworldEnv) -> None:
    kinds = {"udp": (2, 2), "tcp": (2, 1), "unix": (1, 1), "unix datagram": (1, 2), "netlink": (16, 3)}
    code = LIBC + "".join(
        f"print({name!r}, libc.socket({family}, {kind}, 0))\n" for name, (family, kind) in kinds.items()
    )
    text = output(confined, code)
    assert [name for name in kinds if f"{name} -1\n" not in text] == []


def test_nothing_of_the_host_is_changed_or_seen(confined: AppworldEnv, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.touch(0o600)
    text = output(
        confined,
        LIBC
        + f"print('chmod', libc.chmod({str(target).encode()!r}, 0o777))\nprint('proc', libc.access(b'/proc/self', 0))",
    )
    assert "chmod -1\n" in text
    assert "proc -1\n" in text
    assert target.stat().st_mode & 0o777 == 0o600
    own = LIBC + f"print('venv', libc.chmod({str(sys.prefix).encode()!r}, 0o777), libc.access(b'/', 2))"
    assert "venv -1 -1\n" in output(confined, own)


def test_no_process_is_made_and_threads_are_bounded(confined: AppworldEnv) -> None:
    fork = LIBC + "pid = libc.fork()\nif pid == 0:\n    libc._exit(0)\nprint('fork', pid)"
    assert "fork -1\n" in output(confined, fork)
    threads = (
        "from appworld.requester import sys\nthreading, sleep = sys.modules['threading'], "
        "sys.modules['select'].select\n"
        "gate = threading.Event()\ncount = 0\n"
        "try:\n    for _ in range(400):\n        threading.Thread(target=gate.wait, daemon=True).start()\n        "
        "count += 1\n"
        "except RuntimeError:\n    pass\ngate.set()\nprint('threads', count)"
    )
    text = output(confined, threads)
    assert 0 < int(text.split("threads ")[1].split()[0]) < THREADS


def test_without_namespaces_nothing_runs_unless_the_operator_accepts_it(tiny: Installation, short_tmp: Path) -> None:
    folder = short_tmp / "bare"
    folder.mkdir()
    source = f"""
    import os, tempfile
    tempfile.tempdir = {str(folder)!r}
    {FORBID_NAMESPACES}
    from env_service.environments.appworld.env import AppworldEnv
    from env_service.environments.appworld.installation import Installation
    from env_service.environments.appworld.workers import ForkServerClient, WorkerError
    for kind in ("", "landlock", "none"):
        os.environ["APPWORLD_CONFINEMENT"] = kind
        env = AppworldEnv("contactnumber_1", "i")
        try:
            env.get_init_state()
            print(kind, "opened")
        except WorkerError as error:
            print(str(error))
        env.close()
    ForkServerClient.of(Installation.find()).stop()
    """
    program = f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n{textwrap.dedent(source)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    refused, *accepted = done.stdout.splitlines()
    assert "refusing to run an agent's code unconfined: unshare namespaces: EPERM" in refused
    assert "APPWORLD_CONFINEMENT=landlock" in refused
    assert accepted == ["landlock opened", "none opened"], done.stderr


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
    done = subprocess.run(
        ["bash", str(folder / "setup.sh")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "ready" in done.stdout
    assert marker.stat().st_mtime_ns == before
    assert subprocess.run(["bash", str(folder / "setup.sh"), "--nope"], capture_output=True).returncode == 2


def test_the_clock_stands_still_in_the_worker_and_not_here(open_env: OpenEnv) -> None:
    env = open_env("contactnumber_1")
    assert "2023-05-18" in output(env, "print(DateTime.now())")
    assert datetime.now().year > 2023


def test_what_a_root_has_kept_to_itself_is_named_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "specs.json"
    file.touch()
    file.chmod(0o644)
    tmp_path.chmod(0o755)
    demand_readable([str(tmp_path), str(file), str(tmp_path / "missing")])
    tmp_path.chmod(0o711)
    with pytest.raises(RootUnreadable, match=r"mode 711.*chmod -R go\+rX"):
        demand_readable([str(file), str(tmp_path)])
    file.chmod(0o640)
    with pytest.raises(RootUnreadable, match=r"cannot read .*specs\.json"):
        demand_readable([str(file)])
