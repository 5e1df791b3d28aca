"""What is known of an environment lies in its folder: the core of the service and the task manager name none."""

import ast
from pathlib import Path

import pytest

from env_service.registry import FOLDERS, known_environments

ROOT = Path(__file__).parents[2]
# The environment of a file of sections that names none; a word of a path.
DEFAULTS = {("settings.py", "pocket"), ("own_venv.py", "python")}


@pytest.mark.parametrize("package", ["env_service", "task_manager"])
def test_no_environment_is_named(package):
    known = known_environments()
    named = {
        (path.name, node.value)
        for path in sorted((ROOT / package).rglob("*.py"))
        if FOLDERS not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    }
    assert named <= DEFAULTS
