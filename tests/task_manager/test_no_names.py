"""What an environment knows stands in the environment: the sources of task_manager name none."""

import ast
from pathlib import Path

from env_service.registry import known_environments

SOURCES = Path(__file__).parents[2] / "task_manager"
# The environment of a file of sections that names none.
DEFAULT = ("settings.py", "pocket")


def test_no_environment_is_named():
    named = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known_environments():
                named.append((path.name, node.value))
            if isinstance(node, ast.Import | ast.ImportFrom) and "env_service.environments" in ast.unparse(node):
                named.append((path.name, ast.unparse(node)))
    assert named == [DEFAULT]
