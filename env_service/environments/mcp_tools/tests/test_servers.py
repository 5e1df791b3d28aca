"""Real MCP servers as processes and over HTTP: starting, dying, hanging, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_hosts import started_here

from env_service.environments.mcp_tools.env import McpEnv
from env_service.environments.mcp_tools.servers import ServerError, Servers, _result
from tests.free_ports import free_port

from .solutions import SOLUTIONS, calling, said

pytestmark = pytest.mark.service

ODD = str(Path(__file__).with_name("odd_server.py"))
REPOSITORY = Path(__file__).resolve().parents[4]
TASK = {"id": "t", "question": "q", "checks": [{"type": "regex", "pattern": "x"}]}
Start = Callable[..., McpEnv]


def odd(*arguments: str) -> dict[str, Any]:
    return {"command": "${PYTHON}", "args": [ODD, *arguments]}


@pytest.fixture
def start(write_config: Callable[..., Path]) -> Iterator[Start]:
    """Create an instance over configured servers, its own configuration each."""
    made: list[McpEnv] = []

    def create(servers: dict[str, Any], task: dict[str, Any] = TASK, **settings: Any) -> McpEnv:
        write_config(servers, [task], **{"start_timeout_s": 60, **settings})
        made.append(McpEnv("t", "i"))
        return made[-1]

    yield create
    for env in made:
        env.close()


def text_of(env: McpEnv, name: str, **arguments: Any) -> str:
    content = env.step(calling((name, arguments)))["state"][0]["content"]
    return content.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")


def vanish(pids: list[int], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("task_id", ["notes.rename.1", "notes.search.1"])
def test_an_example_task_is_solved_through_the_real_stdio_server(task_id: str) -> None:
    env = McpEnv(task_id, "i")
    try:
        env.get_init_state()
        calls, message = SOLUTIONS[task_id]
        for call in calls:
            env.step(calling(call))
        assert env.step(said(message))["reward"] == 1.0
    finally:
        env.close()


def test_a_server_sees_no_variable_of_the_service_and_lives_in_the_instances_folder(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("GIVEN", "on purpose")
    env = start({"odd": {**odd(), "env": {"TOKEN": "${env:GIVEN}"}}})
    env.get_init_state()
    variables = text_of(env, "environment")
    assert "sk-very-secret" not in variables
    assert "on purpose" in variables
    assert text_of(env, "folder") == str(env._record.folder.resolve())


def test_a_call_that_takes_too_long_is_an_observation_and_the_episode_goes_on(start: Start) -> None:
    env = start({"odd": odd()}, call_timeout_s=0.5)
    env.get_init_state()
    began = time.monotonic()
    assert text_of(env, "sleep", seconds=3) == "Error: The tool 'sleep' did not answer within 0.5 s."
    assert time.monotonic() - began < 3
    time.sleep(3)
    assert text_of(env, "sleep", seconds=0) == "slept"


def test_a_server_that_dies_in_a_call_is_an_error_with_its_last_words(start: Start) -> None:
    env = start({"odd": odd()})
    env.get_init_state()
    with pytest.raises(ServerError, match=r"'odd' is gone .*I must go"):
        env.step(calling(("die", {})))
    with pytest.raises(ServerError, match="is gone"):
        env.step(calling(("pid", {})))


def test_a_server_killed_between_calls_is_an_error(start: Start) -> None:
    env = start({"odd": odd()})
    env.get_init_state()
    pid = int(text_of(env, "pid"))
    os.kill(pid, signal.SIGKILL)
    assert vanish([pid])
    with pytest.raises(ServerError, match="'odd' is gone"):
        env.step(calling(("pid", {})))


@pytest.mark.parametrize("final", [True, False])
def test_an_episode_whose_server_died_has_no_grade(start: Start, final: bool) -> None:
    env = start({"odd": odd()})
    env.get_init_state()
    pid = int(text_of(env, "pid"))
    os.kill(pid, signal.SIGKILL)
    assert vanish([pid])
    if final:
        with pytest.raises(ServerError, match="'odd' is gone"):
            env.step(said("Answer: x"))
    for _ in range(2):
        with pytest.raises(ServerError, match="'odd' is gone"):
            env.evaluate()


def test_an_episode_that_was_graded_keeps_its_grade_when_its_server_dies(start: Start) -> None:
    env = start({"odd": odd()})
    env.get_init_state()
    pid = int(text_of(env, "pid"))
    assert env.step(said("Answer: x"))["reward"] == 1.0
    os.kill(pid, signal.SIGKILL)
    assert vanish([pid])
    assert env.evaluate() == 1.0


def test_a_busy_server_is_not_a_dead_one(start: Start) -> None:
    env = start({"odd": odd()}, call_timeout_s=0.5)
    env.get_init_state()
    text_of(env, "sleep", seconds=2)
    assert env.step(said("Answer: x"))["reward"] == 1.0


def test_what_a_server_logs_lies_in_no_folder_that_a_tool_is_given(start: Start) -> None:
    env = start({"odd": odd("loud")})
    env.get_init_state()
    assert list(env._record.folder.iterdir()) == []
    with pytest.raises(ServerError, match="my key is 42"):
        text_of(env, "die")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"command": "/no/such/program"}, "'odd' did not start: FileNotFoundError"),
        (odd("broken"), "'odd' did not start.*no licence file found"),
        ({"command": "true"}, "'odd' did not start"),
        ({"url": "http://127.0.0.1:9/mcp"}, "'odd' did not start"),
    ],
)
def test_a_server_that_does_not_start_is_an_error_that_names_it(
    start: Start, server: dict[str, Any], message: str
) -> None:
    env = start({"odd": server, "notes": odd()})
    with pytest.raises(ServerError, match=message):
        env.get_init_state()


def test_a_server_that_never_answers_is_given_up_and_killed(start: Start) -> None:
    env = start({"odd": odd("silent")}, start_timeout_s=1.0)
    began = time.monotonic()
    with pytest.raises(ServerError, match="did not start"):
        env.get_init_state()
    assert time.monotonic() - began < 20
    children = [child.pid for child in started_here()]
    env.close()
    assert vanish(children)


def test_an_instance_closed_while_it_starts_leaves_nothing(start: Start) -> None:
    env = start({"odd": odd("silent")}, start_timeout_s=30.0)
    time.sleep(0.3)
    children = [child.pid for child in started_here()]
    began = time.monotonic()
    env.close()
    assert children
    assert vanish(children)
    assert time.monotonic() - began < 15
    assert not env._record.folder.exists()


@pytest.mark.parametrize("manner", [(), ("stubborn",)])
def test_close_ends_the_server_even_if_it_will_not_go(start: Start, manner: tuple[str, ...]) -> None:
    env = start({"odd": odd(*manner)})
    env.get_init_state()
    pid = int(text_of(env, "pid"))
    env.close()
    env.close()
    assert vanish([pid], within_s=1.0)


def test_a_server_ends_with_a_service_that_is_killed() -> None:
    source = f"""
    import sys, time
    sys.path.insert(0, {str(REPOSITORY)!r})
    from env_service.environments.mcp_tools.env import McpEnv
    env = McpEnv("notes.read.1", "i")
    env.get_init_state()
    print("ready", flush=True)
    time.sleep(60)
    """
    service = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True, cwd="/"
    )
    assert service.stdout is not None
    assert service.stdout.readline() == "ready\n"
    children = [child.pid for child in psutil.Process(service.pid).children(recursive=True)]
    service.kill()
    service.wait()
    service.stdout.close()
    assert children
    assert vanish(children)


def test_two_servers_with_the_same_tools_are_told_apart(start: Start) -> None:
    env = start({"one": odd(), "two": odd()})
    assert {"one__pid", "two__pid"} <= set(env.get_init_state()["info"]["tools"])
    assert text_of(env, "one__pid") != text_of(env, "two__pid")


def test_a_setup_call_that_fails_is_an_error_of_the_environment(start: Start) -> None:
    env = start({"odd": odd()}, {**TASK, "setup": [{"tool": "sleep", "arguments": {"seconds": "soon"}}]})
    with pytest.raises(ServerError, match="setup of task 't': 'sleep' failed"):
        env.get_init_state()
    unknown = start({"odd": odd()}, {**TASK, "setup": [{"tool": "nope"}]})
    with pytest.raises(ServerError, match="which no server has"):
        unknown.get_init_state()


@pytest.fixture
def http_server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    process = subprocess.Popen([sys.executable, ODD, "http", str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp", process
    process.kill()
    process.wait()


def test_a_server_is_used_over_streamable_http_and_its_death_is_an_error(
    start: Start, http_server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, process = http_server
    env = start(
        {"odd": {"type": "http", "url": url, "headers": {"X-Any": "thing"}}}, call_timeout_s=5, max_result_chars=1000
    )
    env.get_init_state()
    assert int(text_of(env, "pid")) == process.pid
    assert len(text_of(env, "flood")) < 1100
    process.kill()
    process.wait()
    with pytest.raises(ServerError, match="'odd'"):
        env.step(calling(("pid", {})))


def test_a_server_on_this_machine_is_asked_without_a_proxy(
    start: Start, http_server: tuple[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    url, process = http_server
    env = start({"odd": {"type": "http", "url": url}}, call_timeout_s=5)
    env.get_init_state()
    assert int(text_of(env, "pid")) == process.pid


def test_another_generation_of_the_sdk_is_refused_with_what_to_install() -> None:
    source = f"""
    import sys, types
    sys.path.insert(0, {str(REPOSITORY)!r})
    sys.modules["mcp"] = types.ModuleType("mcp")
    import env_service.environments.mcp_tools.env
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False)
    assert "needs the MCP SDK 2 (pip install 'mcp>=2.3,<3')" in done.stderr


def test_a_caller_is_never_left_waiting_by_a_loop_that_failed() -> None:
    def connect(stack: Any, errors: Any) -> Any:
        raise RuntimeError("no transport")

    servers = Servers({"bad": connect}, 5.0)
    with pytest.raises(ServerError, match="'bad' did not start: RuntimeError: no transport"):
        servers.wait_started()
    servers.close()


@pytest.mark.parametrize(
    ("content", "data", "text"),
    [
        ([], {"n": 1}, '{"n": 1}'),
        ([{"type": "image", "data": "", "mimeType": "image/png"}], {"n": 1}, '(image left out)\n{"n": 1}'),
        ([{"type": "text", "text": "one"}], {"n": 1}, "one"),
        ([{"type": "image", "data": "", "mimeType": "image/png"}], None, "(image left out)"),
    ],
)
def test_what_a_tool_says_in_its_data_alone_is_told(content: list[Any], data: Any, text: str) -> None:
    from mcp.types import CallToolResult

    told = _result(CallToolResult.model_validate({"content": content, "structuredContent": data}))
    assert (told.text, told.data) == (text, data)
