"""The command line: quick help, one-line errors, a skeleton that works."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from env_service.cli import main
from env_service.registry import known_environments

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
COUNTER = ("--env-module", "counter=counter_envs:Counter")
SERVE = ("serve", "--env", "counter", *COUNTER)


def run(*arguments: str, cwd: Path = ROOT, timeout_s: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}", **environ}
    environ.pop("ENV_SERVICE_TOKEN", None) if "ENV_SERVICE_TOKEN" not in environ else None
    command = [sys.executable, "-m", "env_service", *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]])
def test_help_answers_at_once(arguments: list[str]) -> None:
    times = []
    for _ in range(3):
        before = os.times()
        assert run(*arguments).returncode == 0
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(times) < 0.3


def test_an_occupied_port_is_one_line_before_ray_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = time.perf_counter()
        result = run(*SERVE, "--port", str(port))
        assert time.perf_counter() - started < 5
    assert result.returncode == 1
    assert (
        result.stderr.count("\n") == 1
        and f"cannot listen on 127.0.0.1:{port}" in result.stderr
        and "--port" in result.stderr
    )


def test_another_address_without_a_token_is_refused_in_one_line() -> None:
    for option in ("--host", "--portal"):
        result = run(*SERVE, option, "0.0.0.0", "--port", "0")
        assert result.returncode == 1 and result.stderr.count("\n") == 1 and "set ENV_SERVICE_TOKEN" in result.stderr


def test_an_unknown_environment_is_refused_with_the_nearest_name() -> None:
    result = run("serve", "--env", "countr", *COUNTER)
    assert result.returncode == 1 and "did you mean 'counter'" in result.stderr


@pytest.mark.parametrize(
    "options", [["--port", "x"], ["--max-instances", "0"], ["--warm", "-1"], ["--memory-mb", "-1"]]
)
def test_impossible_options_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*SERVE, *options])
    assert caught.value.code == 2 and options[0] in capsys.readouterr().err


def test_list_shows_names_and_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--env-module", "mine=counter_envs:Counter"]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert lines["mine"] == "counter_envs:Counter" and known_environments().items() <= lines.items()


def test_check_says_what_is_broken_and_exits_accordingly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "bad", "--env-module", "bad=counter_envs:Counter", "--action", "1"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"^BROKEN Whatever an agent writes", text, re.M) and text.endswith("broken\n")


def test_new_writes_a_package_that_keeps_the_contract_and_passes_its_own_tests(tmp_path: Path) -> None:
    made = run("new", "word_game", cwd=tmp_path)
    assert made.returncode == 0 and sorted(path.name for path in (tmp_path / "word_game").iterdir()) == [
        "__init__.py",
        "demos.py",
        "env.py",
        "profile.json",
        "test_env.py",
        "train.yaml",
    ]
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


def test_bench_without_a_service_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = run("bench", "counter", "--url", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert result.returncode == 1 and "cannot connect" in result.stderr
