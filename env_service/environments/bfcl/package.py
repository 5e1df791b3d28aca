"""The `bfcl-eval` package: its tasks as plain records, its simulated APIs and its checkers.

It is imported when first needed, and what it writes goes to a temporary directory. `BFCL_ROOT` may name a checkout; a
request cannot.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

VERSION = "2026.3.23"
INSTALL_LINE = f"pip install --no-deps bfcl-eval=={VERSION} mpmath==1.3.0 filelock"
ROOT_VARIABLE = "BFCL_ROOT"
CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")

ToolDoc = Mapping[str, Any]
"""A function as the package documents it: name, description, parameters (its own dialect of JSON schema), response."""


@dataclass(frozen=True)
class BfclTask:
    """One multi-turn task: the user's message, tools, start state and reference calls of each turn.

    `questions[t]` is None where the turn adds functions (`held_out[t]`) instead.
    """

    task_id: str
    category: str
    scenario: int
    questions: tuple[str | None, ...]
    tools: tuple[ToolDoc, ...]
    held_out: Mapping[int, tuple[ToolDoc, ...]]
    initial_config: Mapping[str, Any]
    involved_classes: tuple[str, ...]
    truth: tuple[tuple[str, ...], ...]

    @property
    def long_context(self) -> bool:
        return "long_context" in self.category

    @property
    def checks_irrelevance(self) -> bool:
        return "miss_func" in self.category or "miss_param" in self.category


@dataclass(frozen=True)
class BfclPackage:
    """The used parts of the package, and its 800 multi-turn tasks in its order."""

    tasks: Mapping[str, BfclTask]
    classes: Mapping[str, type]
    stateless_classes: frozenset[str]
    state_checker: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
    response_checker: Callable[[list[str], list[str], int], dict[str, Any]]
    additional_functions_prompt: str
    numbers: Any
    """The context of `mpmath` whose precision `MathAPI` changes for the whole process."""


_loading = threading.Lock()


def load_package() -> BfclPackage:
    """Import the package and read its tasks, once a process (0.6 s, about 50 MB); raise RuntimeError if it is
    unusable."""
    with _loading:
        return _load()


@cache
def _load() -> BfclPackage:
    use_checkout()
    with project_root():
        loader = _import("bfcl_eval.utils")
        checker = _import("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
        config = _import("bfcl_eval.constants.executable_backend_config")
        prompts = _import("bfcl_eval.constants.default_prompts")
        tasks = {task.task_id: task for category in CATEGORIES for task in _read_category(loader, category)}
        # All at once and not when a task needs one: a thread must never meet a module that another one is still
        # importing.
        names = {name for task in tasks.values() for name in task.involved_classes}
        classes = {name: getattr(_import(config.CLASS_FILE_PATH_MAPPING[name]), name) for name in names}
        numbers = _import("mpmath").mp
    _warn_about_version()
    return BfclPackage(
        tasks=tasks,
        classes=classes,
        numbers=numbers,
        stateless_classes=frozenset(config.STATELESS_CLASSES),
        state_checker=checker.state_checker,
        response_checker=checker.response_checker,
        additional_functions_prompt=str(prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC),
    )


def _read_category(loader: Any, category: str) -> Iterator[BfclTask]:
    truths = {entry["id"]: entry["ground_truth"] for entry in loader.load_ground_truth_entry(category)}
    for entry in loader.load_dataset_entry(category, include_language_specific_hint=False):
        task_id = entry["id"]
        yield BfclTask(
            task_id=task_id,
            category=category,
            scenario=int(task_id.rsplit("_", 1)[1]),
            questions=tuple(_question(turn) for turn in entry["question"]),
            tools=tuple(_shared_doc(json.dumps(doc)) for doc in entry["function"]),
            held_out={
                int(turn): tuple(_shared_doc(json.dumps(doc)) for doc in docs)
                for turn, docs in entry.get("missed_function", {}).items()
            },
            initial_config=entry["initial_config"],
            involved_classes=tuple(entry["involved_classes"]),
            truth=tuple(tuple(turn) for turn in truths[task_id]),
        )


def _question(messages: list[dict[str, str]]) -> str | None:
    return "\n".join(message["content"] for message in messages) or None


@cache
def _shared_doc(text: str) -> ToolDoc:
    """Keep one copy of a function's document: 22,000 of them in the tasks are about 130 different ones."""
    doc: ToolDoc = json.loads(text)
    return doc


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(
            f"the bfcl environment could not import `{name}` ({error}); install its package with: {INSTALL_LINE}"
        ) from error


def use_checkout() -> None:
    """Put the folder of `BFCL_ROOT` on the path; raises RuntimeError if it lacks the package."""
    root = os.environ.get(ROOT_VARIABLE)
    if not root:
        return
    if not (Path(root) / "bfcl_eval" / "__init__.py").is_file():
        raise RuntimeError(
            f"{ROOT_VARIABLE}={root!r} holds no `bfcl_eval` package; name the folder that contains it, or unset it"
        )
    sys.path.insert(0, root)


@contextmanager
def project_root() -> Iterator[None]:
    """During the import, point the package's project root to a temporary folder, unless the operator has set it."""
    variable = "BFCL_PROJECT_ROOT"
    if os.environ.get(variable):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="bfcl-") as folder:
        os.environ[variable] = folder
        try:
            yield
        finally:
            del os.environ[variable]


def _warn_about_version() -> None:
    try:
        found = importlib.metadata.version("bfcl-eval")
    except importlib.metadata.PackageNotFoundError:
        return
    if found != VERSION:
        logger.warning(
            "bfcl-eval %s is installed; the adapter was checked with %s, and tasks change between releases",
            found,
            VERSION,
        )
