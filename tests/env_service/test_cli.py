"""The command line: one-line errors, and what `check` says."""

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


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    environ["ENV_SERVICE_TOKEN"] = "  "  # no token
    command = [sys.executable, "-m", "env_service", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)


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
