"""Connections for the tests: the example's server in memory, and configurations in a folder of the test's own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

pytest.importorskip("mcp", reason="needs the mcp package")

from env_service.environments.mcp_tools import env as env_module
from env_service.environments.mcp_tools.config import McpConfig
from env_service.environments.mcp_tools.env import McpEnv
from env_service.environments.mcp_tools.example.notes_server import build_server
from env_service.environments.mcp_tools.servers import Connect

Make = Callable[..., McpEnv]


def in_memory(config: McpConfig, config_dir: Path, folder: Path) -> dict[str, Connect]:
    """The notes server in this process instead of a child: same server, same client, no second interpreter to start."""

    def connect(stack: contextlib.AsyncExitStack, errors: TextIO) -> Any:
        return build_server(folder / "notes.json")

    return {"notes": connect}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Create instances whose servers run in memory."""
    monkeypatch.setattr(env_module, "connects_of", in_memory)
    made: list[McpEnv] = []

    def create(task_id: str, params: dict[str, Any] | None = None) -> McpEnv:
        made.append(McpEnv(task_id, "i", params))
        made[-1].get_init_state(params)
        return made[-1]

    yield create
    for env in made:
        env.close()


@pytest.fixture
def write_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a configuration and its tasks, and make it the service's."""

    def write(servers: dict[str, Any], tasks: list[dict[str, Any]], **settings: Any) -> Path:
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"mcpServers": servers, "tasks": ["tasks.jsonl"], **settings}), encoding="utf-8")
        monkeypatch.setenv("ENV_MCP_CONFIG", str(path))
        return path

    return write
