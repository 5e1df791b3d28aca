"""`env_service new NAME --mcp FILE` writes a world whose tools are the servers', and nothing if they do not start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from env_service.cli import main
from env_service.environments.mcp_tools import config as config_module
from env_service.environments.mcp_tools.config import load_config, task_paths
from env_service.environments.mcp_tools.tasks import load_tasks
from task_manager.profile import load_profile

pytestmark = pytest.mark.service  # starts servers

ROOT = Path(__file__).parents[4]
SERVER = config_module.EXAMPLE.with_name("notes_server.py")


def servers(folder: Path, **changes: Any) -> Path:
    """A file as MCP clients have it, with the server beside it."""
    (folder / "notes_server.py").write_text(SERVER.read_text(encoding="utf-8"), encoding="utf-8")
    notes = {"command": "${PYTHON}", "args": ["${CONFIG_DIR}/notes_server.py", "${INSTANCE_DIR}/notes.json"], **changes}
    path = folder / "server.json"
    path.write_text(json.dumps({"mcpServers": {"notes": notes}}), encoding="utf-8")
    return path


def test_what_is_written_is_a_world_with_the_servers_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["new", "my_notes", "--mcp", str(servers(tmp_path)), "--dir", str(tmp_path)]) == 0
    package = tmp_path / "my_notes"
    config = load_config(package / "config.json")
    tasks = load_tasks(task_paths(package / "config.json", config), judge=False)
    assert [task.split for task in tasks.values()] == ["train", "dev"]
    (entity,) = load_profile(package / "profile.json").entities
    assert [operation.name for operation in entity.opts][:2] == ["note_list", "note_read"]
    module = "my_notes=my_notes.env:MyNotesEnv"
    assert f"check my_notes --env-module {module}\n" in capsys.readouterr().out
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my_notes", "-k", "servers"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    tested = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert tested.returncode == 0 and "1 passed" in tested.stdout, tested.stdout


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"args": ["-c", "raise SystemExit('no key')"]}, "no key"),
        ({"command": "/no/such/program"}, "cannot be used"),
        ({"kommand": "x"}, "kommand"),
    ],
)
def test_servers_that_cannot_be_used_are_one_line_and_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], problem: str
) -> None:
    assert main(["new", "my_notes", "--mcp", str(servers(tmp_path, **change)), "--dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m env_service new: error: ") and problem in said
    assert not (tmp_path / "my_notes").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"servers": {}}'])
def test_a_file_that_lists_no_servers_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "server.json").write_text(text)
    assert main(["new", "mine", "--mcp", str(tmp_path / "server.json"), "--dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "mine").exists()
