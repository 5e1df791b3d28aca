"""BFCL's single-turn tasks. A call is graded by its text, by the package's AST checker: the functions do nothing.

Java's and JavaScript's tasks, whose arguments are source text, are left out.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from env_service.environments.bfcl.package import INSTALL_LINE, ToolDoc, project_root, use_checkout

GRADED = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)
"""Categories that have possible answers."""

ALL_FILES = (*GRADED, "irrelevance", "live_irrelevance", "live_relevance")
_MODEL = "any"


@dataclass(frozen=True, slots=True)
class SingleTurnTask:
    """A request: system text (may be ""), question, functions, and for each call of the answer the allowed values of
    each parameter ("" among them: it may be omitted)."""

    task_id: str
    category: str
    system: str
    question: str
    functions: tuple[ToolDoc, ...]
    truth: tuple[Mapping[str, Mapping[str, Sequence[Any]]], ...]

    def names(self) -> set[str]:
        return {name for call in self.truth for name in call}


def functions(category: str) -> Iterator[ToolDoc]:
    """Yield the functions that the tasks of a category offer, task by task; raises RuntimeError without the package."""
    for entry in _lines(_data() / f"BFCL_v4_{category}.json"):
        yield from entry.get("function") or ()


def multi_turn_functions() -> Iterator[ToolDoc]:
    """Yield the functions of the multi-turn tasks' APIs; raises RuntimeError without the package."""
    for path in sorted((_data() / "multi_turn_func_doc").glob("*.json")):
        for doc in _lines(path):
            told = str(doc["description"]).rpartition("Tool description: ")[2]
            yield {**doc, "description": told}


@cache
def single_turn_tasks() -> Mapping[str, SingleTurnTask]:
    """Return all tasks by id, in the package's order; raises RuntimeError without the package."""
    found = {}
    for category in GRADED:
        truths = {
            entry["id"]: entry["ground_truth"]
            for entry in _lines(_data() / "possible_answer" / f"BFCL_v4_{category}.json")
        }
        for entry in _lines(_data() / f"BFCL_v4_{category}.json"):
            said = entry["question"][0]
            found[entry["id"]] = SingleTurnTask(
                entry["id"],
                category,
                "\n".join(message["content"] for message in said if message["role"] == "system"),
                "\n".join(message["content"] for message in said if message["role"] != "system"),
                tuple(entry["function"]),
                tuple(truths[entry["id"]]),
            )
    return found


def is_right(task: SingleTurnTask, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Whether calls (function, arguments) answer a task by the package's AST checker. A checker's exception means
    no."""
    checker = _checker()
    made = [{name.replace(".", "_"): dict(arguments)} for name, arguments in calls]
    try:
        found = checker.ast_checker(
            list(task.functions), made, list(task.truth), checker.Language.PYTHON, task.category, _MODEL
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return False
    return bool(found["valid"])


def share_right(task: SingleTurnTask, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> float:
    docs = {doc["name"]: doc for doc in task.functions}
    left, right = list(calls), 0
    for wanted in task.truth:
        (name,) = wanted
        one = SingleTurnTask(task.task_id, "simple_python", "", "", (docs[name],), (wanted,))
        match = next((call for call in left if is_right(one, [call])), None)
        if match is not None:
            left.remove(match)
            right += 1
    return right / max(len(task.truth), len(calls))


def reference_calls(task: SingleTurnTask) -> list[tuple[str, dict[str, Any]]]:
    """Return calls that answer a task, with the first allowed value of each required parameter.

    The package's checker refuses a few of its own answers: see `is_right`.
    """
    required = {doc["name"]: set(doc["parameters"].get("required", ())) for doc in task.functions}
    return [
        (name, {key: _first(values) for key, values in parameters.items() if "" not in values or key in required[name]})
        for call in task.truth
        for name, parameters in call.items()
    ]


def _first(values: Sequence[Any]) -> Any:
    value = next((value for value in values if value != ""), None)
    if isinstance(value, dict):
        return {
            key: _first(inner) if isinstance(inner, list) else inner
            for key, inner in value.items()
            if not (isinstance(inner, list) and "" in inner)
        }
    return [_first([item]) for item in value] if isinstance(value, list) else value


@cache
def _data() -> Path:
    use_checkout()
    with project_root():
        try:
            package = importlib.import_module("bfcl_eval")
        except ImportError as error:
            raise RuntimeError(
                f"BFCL's data are not here ({error}); install its package with: {INSTALL_LINE}"
            ) from error
    return Path(str(package.__file__)).parent / "data"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


@cache
def _checker() -> Any:
    """Import the package's checker. The checker's table of models would import every vendor's SDK, so a table of our
    own, with a flag that keeps dots out of function names, replaces it during the import."""
    _data()
    table = "bfcl_eval.constants.model_config"
    before, stand_in = sys.modules.get(table), ModuleType(table)
    stand_in.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=True)}  # type: ignore[attr-defined]
    sys.modules[table] = stand_in
    try:
        with project_root():
            return importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    finally:
        if before is None:
            del sys.modules[table]
        else:
            sys.modules[table] = before
