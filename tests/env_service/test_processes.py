from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from env_service.hosting.processes import SOCKET_CHARS, new_folder, remove_folder, without_secrets


def test_secrets_and_rays_variables_do_not_reach_isolated_environments() -> None:
    secrets = (
        "OPENAI_API_KEY",
        "ENV_SERVICE_TOKEN",
        "DB_PASSWORD",
        "AWS_SECRET_ACCESS",
        "RAY_ADDRESS",
        "JUDGE_API_KEY",
    )
    environ = {"PATH": "/bin", **dict.fromkeys(secrets, "k")}
    assert without_secrets(environ, keep=["JUDGE_API_KEY"]) == {"PATH": "/bin", "JUDGE_API_KEY": "k"}


def test_a_host_sees_of_the_secrets_in_files_those_that_are_passed_on(tmp_path: Path) -> None:
    for name in ("WANTED_KEY", "OTHER_KEY"):
        (tmp_path / name).write_text("k")
    script = """
import os, sys
from env_service.hosting.host import HostActor, HostSpec
HostActor(HostSpec("counter", "counter_envs:Counter", pass_env=("WANTED_KEY", "NOT_THERE_KEY"), secrets=sys.argv[1]))
assert os.environ["WANTED_KEY"] == "k" and not {"OTHER_KEY", "NOT_THERE_KEY", "SHELLS_KEY"} & {*os.environ}
"""
    environ = {"PYTHONPATH": os.pathsep.join((*sys.path, str(Path(__file__).parent))), "SHELLS_KEY": "k"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_longest_path_that_is_given_is_one_of_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tempfile.mkdtemp(dir="/tmp")
    try:
        root = Path(parent) / ("x" * (SOCKET_CHARS - len("/env_service-4194304-12345678/workers") - len(parent) - 1))
        root.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        monkeypatch.setattr(os, "getpid", lambda: 4_194_304)
        folder = new_folder(len("/workers"))
        assert Path(folder).parent == root and Path(folder).stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"{folder}/workers")
        root = root.rename(f"{root}x")
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        folder = new_folder(len("/workers"))
        assert Path(folder).parent == Path("/tmp")
        remove_folder(folder)
    finally:
        remove_folder(parent)
