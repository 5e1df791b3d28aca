"""The command line: quick help, one-line errors, a skeleton that works."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from env_service.cli import main

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
COUNTER = ("--env-module", "counter=counter_envs:Counter")
SERVE = ("serve", "--env", "counter", *COUNTER)


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    environ.pop("ENV_SERVICE_TOKEN", None)
    command = [sys.executable, "-m", "env_service", *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_help_answers_at_once() -> None:
    times = []
    for _ in range(3):
        before = os.times()
        assert run("serve", "--help").returncode == 0
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(times) < 0.3


def test_an_occupied_port_is_one_line_before_ray_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(*SERVE, "--port", str(port))
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_another_address_without_a_token_is_refused_in_one_line() -> None:
    for option in ("--host", "--portal"):
        result = run(*SERVE, option, "0.0.0.0", "--port", "0")
        assert result.returncode == 1 and result.stderr.count("\n") == 1 and "set ENV_SERVICE_TOKEN" in result.stderr


def test_check_says_what_is_broken_and_exits_accordingly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "bad", "--env-module", "bad=counter_envs:Counter", "--action", "1"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"^BROKEN Whatever an agent writes", text, re.M) and text.endswith("broken\n")


def test_new_writes_a_package_that_keeps_the_contract_and_passes_its_own_tests(tmp_path: Path) -> None:
    made = run("new", "word_game", cwd=tmp_path)
    assert made.returncode == 0
    module = "word_game=word_game.env:WordGameEnv"
    assert module in made.stdout
    checked = run("check", "word_game", "--env-module", module, "--action", "tea", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "word_game"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    tested = subprocess.run(tests, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    again = run("new", "word_game", cwd=tmp_path)
    assert again.returncode == 2 and "exists" in again.stderr
    assert run("new", "No-Name", cwd=tmp_path).returncode == 2
