"""Skeleton of an environment whose tools are those of MCP servers: a package with the servers' configuration, a first
task for each split, a profile, a test, and a run."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from env_service.environments.mcp_tools.config import McpConfigError, load_config
from env_service.environments.mcp_tools.env import connects_of
from env_service.environments.mcp_tools.prompts import native_names
from env_service.environments.mcp_tools.servers import McpTool, ServerError, Servers
from env_service.skeleton import SkeletonError, filled, new_package, template

ENV = '''"""$title: tasks for the tools of the MCP servers that `config.json` names."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from env_service.environments.mcp_tools.env import McpEnv


class ${cls}Env(McpEnv):
    """The servers of `config.json` and the tasks of `tasks.jsonl`, beside this file; the README of \
env_service/environments/mcp_tools says what both may hold."""

    config: ClassVar[Path | None] = Path(__file__).with_name("config.json")
'''

TESTS = '''"""The environment keeps the contract, and the servers' tools are its tools."""

from __future__ import annotations

from env_service.checker import LocalProbe, run_checks

from $name.env import ${cls}Env


def test_it_keeps_the_contract() -> None:
    problems = [finding for finding in run_checks(LocalProbe(${cls}Env)) if finding.problem]
    assert not problems, problems


def test_the_tools_are_the_servers() -> None:
    env = ${cls}Env(${cls}Env.get_query_list("train")[0], "test", {"native_tools": True})
    try:
        env.get_init_state()
        assert {tool["function"]["name"] for tool in env.tools()} == set($tools)
    finally:
        env.close()
'''


def write_mcp_skeleton(name: str, servers: Path, folder: Path) -> list[Path]:
    """Write the package `name` into `folder` and return its files.

    Starts the servers once to list their tools. `servers` is a JSON file with `mcpServers` in the form of MCP clients,
    and `${CONFIG_DIR}` in it is its folder.

    Raises:
        SkeletonError: a bad name or file, an existing package, or a server that does not start; nothing is written.
    """
    try:
        text = servers.read_text(encoding="utf-8")
        given = json.loads(text.replace("${CONFIG_DIR}", json.dumps(str(servers.resolve().parent))[1:-1]))
    except (OSError, ValueError) as error:
        raise SkeletonError(f"cannot read the MCP servers of {servers}: {error}") from error
    if not isinstance(given, dict):
        raise SkeletonError(f'{servers} must be an object like {{"mcpServers": {{NAME: {{"command": ...}}}}}}')
    config = {"tasks": ["tasks.jsonl"], "state": [], **given} | {"tasks": ["tasks.jsonl"]}
    package, facts = new_package(name, folder)
    try:
        tools = _tools(config, package)
        names = list(native_names(list(tools)))
        config_text, tasks, profile = _json(config), _tasks(name, len(names)), _json(_profile(facts["title"], tools))
        files = {
            "__init__.py": f'"""{facts["title"]}."""\n',
            "config.json": config_text,
            "tasks.jsonl": tasks,
            "env.py": filled(ENV, facts),
            "profile.json": profile,
            "test_env.py": filled(TESTS, {**facts, "tools": json.dumps(names)}),
            "train.yaml": filled(template("train.yaml"), facts),
        }
    except BaseException:
        shutil.rmtree(package)
        raise
    for file_name, content in files.items():
        (package / file_name).write_text(content, encoding="utf-8")
    return [package / file_name for file_name in files]


def _tools(config: Mapping[str, Any], package: Path) -> dict[str, McpTool]:
    path = package / "config.json"
    path.write_text(_json(config), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="mcp-tools-") as instance:
        try:
            read = load_config(path)
            running = Servers(connects_of(read, package, Path(instance)), read.start_timeout_s)
            try:
                running.wait_started()
                return dict(running.tools)
            finally:
                running.close()
        except (McpConfigError, ServerError) as error:
            raise SkeletonError(f"these MCP servers cannot be used: {error}") from error


def _tasks(name: str, tools: int) -> str:
    """Return a placeholder task for each split, solvable with any server."""
    tasks = [
        {
            "id": f"{name}.tools.{number}",
            "split": split,
            "question": f"How many functions can you call? {wish}",
            "checks": [{"type": "exact", "answer": str(tools)}],
        }
        for number, (split, wish) in enumerate(
            (("train", "Answer with the number."), ("dev", "Give the bare number as the answer.")), 1
        )
    ]
    return "".join(json.dumps(task) + "\n" for task in tasks)


def _profile(title: str, tools: Mapping[str, McpTool]) -> dict[str, Any]:
    entities = [
        {
            "name": server,
            "description": f"What the MCP server {server} keeps or knows.",
            "attrs": {},
            "opts": [
                {"name": tool.name, "description": tool.description or tool.name}
                for tool in tools.values()
                if tool.server == server
            ],
        }
        for server in dict.fromkeys(tool.server for tool in tools.values())
    ]
    background = "Somebody whose assistant works with the tools below."
    preference = {"num_entities": 1, "num_opts": 3, "relation_difficulty": 1}
    return {"name": title, "background": background, "entities": entities, "task_preference": preference}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
