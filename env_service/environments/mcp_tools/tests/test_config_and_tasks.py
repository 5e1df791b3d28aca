"""Configuration and task files: strict, named by place, and from the service's side only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_service.environments.mcp_tools.config import (
    HttpServer,
    McpConfigError,
    StdioServer,
    config_path,
    load_config,
    resolved,
    task_paths,
)
from env_service.environments.mcp_tools.env import McpEnv
from env_service.environments.mcp_tools.tasks import McpTaskFileError, PathError, find, load_tasks, parse_path

TASK = {"id": "a", "question": "q", "checks": [{"type": "exact", "answer": "1"}]}
SERVER = {"command": "server"}


def _config(folder: Path, text: Any) -> Path:
    path = folder / "config.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def test_the_example_is_used_unless_a_variable_names_another_file(tmp_path: Path) -> None:
    assert config_path({}).parent.name == "example"
    assert config_path({"ENV_MCP_CONFIG": str(tmp_path / "mine.json")}) == tmp_path / "mine.json"


def test_the_forms_that_mcp_clients_share_are_read(tmp_path: Path) -> None:
    servers = {
        "a": {"command": "node", "args": ["x.js"], "env": {"A": "b"}},
        "b": {"type": "stdio", "command": "c"},
        "c": {"url": "http://127.0.0.1:1/mcp"},
        "d": {"type": "streamable-http", "url": "https://host/mcp", "headers": {"Authorization": "Bearer x"}},
    }
    config = load_config(_config(tmp_path, {"mcpServers": servers, "tasks": ["t.jsonl"]}))
    assert [type(server) for server in config.mcpServers.values()] == [StdioServer, StdioServer, HttpServer, HttpServer]
    assert task_paths(tmp_path / "config.json", config) == (tmp_path / "t.jsonl",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ({"mcpServers": {}, "tasks": ["t"]}, "mcpServers"),
        ({"mcpServers": {"a": SERVER}, "tasks": []}, "tasks"),
        ({"mcpServers": {"a": SERVER}, "tasks": ["t"], "timeout": 3}, "timeout"),
        ({"mcpServers": {"a": {**SERVER, "comand": "x"}}, "tasks": ["t"]}, "comand"),
        ({"mcpServers": {"a": {"type": "sse", "url": "http://x"}}, "tasks": ["t"]}, "mcpServers.a"),
        ({"mcpServers": {"a": {"url": "file:///etc/passwd"}}, "tasks": ["t"]}, "url"),
        (
            {"mcpServers": {"a": {"command": "x", "args": ["-k=${env:MY_TOKEN}"]}}, "tasks": ["t"]},
            "read a command line",
        ),
        ({"mcpServers": {"a": SERVER}, "tasks": ["t"], "call_timeout_s": 600}, "call_timeout_s"),
    ],
)
def test_a_wrong_configuration_is_named_by_file_and_place(tmp_path: Path, text: Any, message: str) -> None:
    with pytest.raises(McpConfigError, match=message) as caught:
        load_config(_config(tmp_path, text))
    assert "config.json" in str(caught.value)


def test_a_configuration_that_is_not_there_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(McpConfigError, match="set ENV_MCP_CONFIG"):
        load_config(tmp_path / "absent.json")


def test_placeholders_are_filled_in_for_one_instance() -> None:
    server = StdioServer(
        command="${PYTHON}", args=["${CONFIG_DIR}/s.py", "${INSTANCE_DIR}/f"], env={"T": "x${env:MY_TOKEN}"}
    )
    filled = resolved(server, Path("/config"), Path("/instance"), {"MY_TOKEN": "1"})
    assert isinstance(filled, StdioServer)
    assert (filled.command, filled.args, filled.env, filled.cwd) == (
        sys.executable,
        ["/config/s.py", "/instance/f"],
        {"T": "x1"},
        "/instance",
    )


@pytest.mark.parametrize(("text", "message"), [("${HOME}", "INSTANCE_DIR"), ("${env:NOT_SET}", "--pass-env")])
def test_an_unknown_placeholder_is_refused(text: str, message: str) -> None:
    with pytest.raises(McpConfigError, match=message):
        resolved(StdioServer(command=text), Path("/"), Path("/"), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checks": []}, "checks"),
        ({"checks": [{"type": "eval", "code": "1"}]}, "checks"),
        ({"checks": [{"type": "regex", "pattern": "("}]}, "regular expression"),
        ({"checks": [{"type": "json_path", "path": "a", "file": "f"}]}, "must begin with"),
        ({"checks": [{"type": "json_path", "path": "$", "equals": 1}]}, "either `file` or `tool`"),
        ({"checks": [{"type": "json_path", "path": "$", "equals": 1, "file": "../x"}]}, "instance's folder"),
        ({"checks": [{"type": "json_path", "path": "$", "equals": 1, "file": "/etc/passwd"}]}, "instance's folder"),
        ({"checks": [{"type": "exact", "answer": []}]}, "nothing to compare"),
        ({"checks": [{"type": "exact", "answer": ""}]}, "nothing to compare"),
        ({"checks": [{"type": "exact", "answer": ["blue", " ... "]}]}, "nothing to compare"),
        ({"checks": [{"type": "json_path", "path": "$", "file": "f", "equals": [float("nan")]}]}, "not JSON compliant"),
        ({"split": "val"}, "split"),
        ({"quesiton": "x"}, "quesiton"),
        ({"setup": [{"tol": "x"}]}, "setup"),
    ],
)
def test_a_wrong_task_is_named_by_file_line_and_place(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(TASK) + "\n\n" + json.dumps({**TASK, "id": "b", **change}), encoding="utf-8")
    with pytest.raises(McpTaskFileError, match=message) as caught:
        load_tasks((path,), judge=True)
    assert "tasks.jsonl, line 3" in str(caught.value)


@pytest.mark.parametrize("encode", [lambda line: "\ufeff" + line, lambda line: line.replace("\n", "\r\n")])
@pytest.mark.parametrize("sign", "\u2028\u2029\u0085")
def test_signs_that_end_a_line_elsewhere_and_a_mark_at_the_start_are_read(
    tmp_path: Path, encode: Callable[[str], str], sign: str
) -> None:
    path = tmp_path / "tasks.jsonl"
    lines = json.dumps({**TASK, "question": f"one{sign}two"}, ensure_ascii=False) + "\n\n"
    path.write_bytes(encode(lines).encode())
    (task,) = load_tasks((path,), judge=False).values()
    assert task.question == f"one{sign}two"
    path.write_bytes(lines.replace(sign, "é").encode("latin-1"))
    with pytest.raises(McpTaskFileError, match=r"tasks\.jsonl, line 1"):
        load_tasks((path,), judge=False)


def test_an_id_that_occurs_twice_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(TASK) + "\n" + json.dumps(TASK), encoding="utf-8")
    with pytest.raises(McpTaskFileError, match="'a' occurs twice"):
        load_tasks((path,), judge=False)
    with pytest.raises(McpTaskFileError, match="cannot read"):
        load_tasks((tmp_path / "absent.jsonl",), judge=False)


def test_a_task_that_needs_a_judge_is_refused_where_there_is_none(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config({"a": SERVER}, [{**TASK, "checks": [{"type": "judge", "rubric": "is polite"}]}])
    with pytest.raises(McpTaskFileError, match="set ENV_MCP_JUDGE_URL"):
        McpEnv.get_query_list("train")
    monkeypatch.setenv("ENV_MCP_JUDGE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ENV_MCP_JUDGE_MODEL", "judge")
    assert McpEnv.get_query_list("train") == ["a"]


def test_the_task_list_takes_no_parameters_and_knows_its_splits(write_config: Callable[..., Path]) -> None:
    path = write_config({"a": SERVER}, [TASK, {**TASK, "id": "b", "split": "test"}])
    assert McpEnv.get_query_list("test") == ["b"]
    with pytest.raises(ValueError, match="takes none"):
        McpEnv.get_query_list("train", {"config": str(path)})
    with pytest.raises(ValueError, match="unknown split 'val'"):
        McpEnv.get_query_list("val")


VALUE = {"a": [{"b c": 1}, None], "d-e": "x"}


@pytest.mark.parametrize(
    ("path", "found"), [("$", VALUE), ("$.a[0]['b c']", 1), ('$["a"][-1]', None), ("$.d-e", "x"), ("$['a'][1]", None)]
)
def test_a_json_path_finds_one_value(path: str, found: Any) -> None:
    assert find(VALUE, path) == found


@pytest.mark.parametrize("path", ["$.b", "$.a[2]", "$.a.b", "$[0]", "$.d-e[0]", "$.a[-3]"])
def test_a_json_path_to_nothing_says_so(path: str) -> None:
    with pytest.raises(PathError):
        find(VALUE, path)


@pytest.mark.parametrize("path", ["a", "$..a", "$.a[*]", "$.a[?(@.x)]", "$.", "$['a"])
def test_a_json_path_beyond_the_understood_part_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="JSON path"):
        parse_path(path)
