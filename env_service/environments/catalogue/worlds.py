"""The worlds that tasks of a catalogue come from: requests, tools, and grades.

PocketWorld is graded by its state, BFCL's single-turn tasks by the package's checker of the calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from env_service.environments.bfcl.single_turn import (
    SingleTurnTask,
    is_right,
    reference_calls,
    share_right,
    single_turn_tasks,
)
from env_service.environments.catalogue.sources import json_schema
from env_service.environments.catalogue.tools import CatalogueTool
from env_service.environments.pocket.calls import CallError, PocketCall, call_of, undotted
from env_service.environments.pocket.families import LEVELS
from env_service.environments.pocket.grading import score
from env_service.environments.pocket.quirks import quirks_of, signature
from env_service.environments.pocket.tasks import WorldTask, make_task, task_ids
from env_service.tool_calls import ToolCall

MOST_TOOLS = 3
POCKET_ALWAYS = ("doc", "done")
WORLDS = ("pocket", "bfcl")
_BFCL_SHARES = (("train", 0.6), ("dev", 0.7), ("test", 1.0))


class ActionRefused(Exception):
    """A refused call; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class CatalogueStep:
    """A reference call: the tool's name in its world, and its arguments."""

    tool: str
    arguments: Mapping[str, Any]


class CatalogueWorld(Protocol):
    source: str
    system: str
    query: str

    def call(self, tool: CatalogueTool, arguments: Mapping[str, Any]) -> str:
        """Carry out a call of one of this world's tools; raises ActionRefused."""

    def finish(self, answer: str) -> None:
        """Take the answer that ends the episode."""

    def evaluate(self, *, sparse: bool) -> float:
        """Return the grade, 0..1."""

    def facts(self) -> dict[str, Any]:
        """Return the facts that a task may change."""

    def solution(self) -> list[CatalogueStep]:
        """Return the reference's calls."""

    def answer(self) -> str:
        """Return the reference's answer, "" if none is asked for."""


class PocketTask:
    source = "pocket"

    def __init__(self, name: str) -> None:
        self._task: WorldTask = make_task(name)
        if not 1 <= len(pocket_tools(self._task)) <= MOST_TOOLS:
            raise ValueError(f"task {name!r} needs {len(pocket_tools(self._task))} tools of the catalogue, not 1 to 3")
        self._world = self._task.world("json")
        self.system = f"site k{self._task.site}"
        self.query = self._task.query

    def call(self, tool: CatalogueTool, arguments: Mapping[str, Any]) -> str:
        try:
            call = call_of(ToolCall(tool.name_there, dict(arguments)), "call a tool")
            return undotted(self._world.carry_out(call))
        except CallError as error:
            raise ActionRefused(undotted(f"err {error}")) from error

    def call_compact(self, tool: str, words: tuple[str, ...]) -> str:
        """Carry out a call with positional arguments; raises ActionRefused."""
        try:
            return undotted(self._world.carry_out(PocketCall(tool, words)))
        except CallError as error:
            raise ActionRefused(undotted(f"err {error}")) from error

    def finish(self, answer: str) -> None:
        self._world.carry_out(PocketCall("done", tuple(answer.split())))

    def evaluate(self, *, sparse: bool) -> float:
        return score(self._task, self._world, sparse=sparse)

    def facts(self) -> dict[str, Any]:
        return {" ".join(map(str, key)): value for key, value in sorted(self._world.tables.facts().items(), key=str)}

    def solution(self) -> list[CatalogueStep]:
        return [
            CatalogueStep(call.tool, dict(zip(self._keys(call), call.args, strict=False)))
            for call in self._task.solution
            if call.tool != "done"
        ]

    def _keys(self, call: PocketCall) -> tuple[str, ...]:
        return tuple(param.key for param in signature(call.tool, quirks_of(self._task.site)))

    def answer(self) -> str:
        return self._task.answer or ""


class CatalogueBfclTask:
    """A single-turn task of BFCL. Its calls are recorded; the functions do nothing."""

    source = "bfcl"

    def __init__(self, name: str) -> None:
        tasks = single_turn_tasks()
        if name not in tasks:
            raise ValueError(f"BFCL has no single-turn task {name[:80]!r}")
        self._task: SingleTurnTask = tasks[name]
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self.system = self._task.system
        self.query = self._task.question

    def call(self, tool: CatalogueTool, arguments: Mapping[str, Any]) -> str:
        """Record a call; raises ActionRefused if a parameter is missing or unknown."""
        known, required = tool.parameters.get("properties", {}), tool.parameters.get("required", [])
        if missing := [name for name in required if name not in arguments]:
            raise ActionRefused(f"Error: {tool.name} needs {', '.join(missing)}.")
        if unknown := sorted(set(arguments) - set(known)):
            raise ActionRefused(
                f"Error: {tool.name} has no parameter {unknown[0]!r}; it has: {', '.join(known) or 'none'}."
            )
        self._calls.append((tool.name_there, dict(arguments)))
        return "Done: the call is written down; it gives no result."

    def finish(self, answer: str) -> None:
        """BFCL's tasks do not grade the answer."""

    def evaluate(self, *, sparse: bool) -> float:
        """Grade by the package's checker; dense: the share of expected calls that were made."""
        return float(is_right(self._task, self._calls)) if sparse else share_right(self._task, self._calls)

    def facts(self) -> dict[str, Any]:
        return {str(number): [name, arguments] for number, (name, arguments) in enumerate(self._calls, 1)}

    def solution(self) -> list[CatalogueStep]:
        return [CatalogueStep(name, arguments) for name, arguments in reference_calls(self._task)]

    def answer(self) -> str:
        return ""


def make_world(task_id: str) -> PocketTask | CatalogueBfclTask:
    world, _, name = task_id.partition(".")
    if world == "pocket":
        return PocketTask(name)
    if world == "bfcl":
        return CatalogueBfclTask(name)
    raise ValueError(f"task id {task_id[:80]!r} must begin with one of: {', '.join(f'{name}.' for name in WORLDS)}")


def pocket_tools(task: WorldTask) -> set[str]:
    return {call.tool for call in task.solution} - set(POCKET_ALWAYS)


def pocket_ids(split: str, levels: tuple[int, ...], n: int | None) -> list[str]:
    """Return PocketWorld's ids whose reference uses 1 to 3 tools of the catalogue."""
    ids = task_ids(split, None, levels or LEVELS)
    fit = [f"pocket.{name}" for name in ids if 1 <= len(pocket_tools(make_task(name))) <= MOST_TOOLS]
    return fit[:n]


def bfcl_ids(split: str, tools: Mapping[str, CatalogueTool], n: int | None) -> list[str]:
    """Return BFCL's ids whose answer calls 1 to 3 functions, all in the catalogue with the task's own schema; raises
    ValueError, RuntimeError without the package."""
    if split not in dict(_BFCL_SHARES):
        raise ValueError(f"unknown split {split!r}; bfcl's tasks here have: {', '.join(dict(_BFCL_SHARES))}")
    there = {tool.name_there: tool for tool in tools.values() if tool.source == "bfcl"}
    found = [f"bfcl.{name}" for name in _usable(frozenset(there)) if _split_of(name) == split]
    return [task for task in found if _documented(task.partition(".")[2], there)][:n]


@cache
def _usable(known: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        name
        for name, task in single_turn_tasks().items()
        if 1 <= len(task.names()) <= MOST_TOOLS and task.names() <= known and is_right(task, reference_calls(task))
    )


def _documented(name: str, there: Mapping[str, CatalogueTool]) -> bool:
    task = single_turn_tasks()[name]
    docs = {doc["name"]: doc for doc in task.functions}
    return all(json_schema(docs[wanted]["parameters"]) == there[wanted].parameters for wanted in task.names())


def _split_of(name: str) -> str:
    """Return a BFCL task's split: 60, 10 and 30 per cent by a hash of its id."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
    return next(split for split, until in _BFCL_SHARES if place < until)
