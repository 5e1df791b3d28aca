"""BFCL's ground truth as native calls of each tool format: written as a model of the family writes it, parsed from its
ids, carried out, graded."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from agentevolver.rollout.tools.formats import TOOL_FORMATS, tool_format
from agentevolver.rollout.tools.schema import Parsed, ToolSpec, call_id
from env_service.checker import LocalProbe
from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.bfcl.package import load_package
from env_service.environments.bfcl.prompts import native_schema
from env_service.environments.bfcl.tests.replay import all_task_ids, reference_turns
from tests.agentevolver.rollout.tools.writing import WRITERS, Writer, writer

# Its reference calls `tail` two turns before that is on offer.
UNOFFERED = ("multi_turn_miss_func_49",)
Calls = list[tuple[str, dict[str, Any]]]


@functools.cache
def every_tool() -> list[ToolSpec]:
    """The functions of all tasks, whose types the formats without types of their own are read by."""
    return list(every_spec().values())


@functools.cache
def every_spec() -> dict[str, ToolSpec]:
    docs = {
        doc["name"]: doc
        for task in load_package().tasks.values()
        for doc in (*task.tools, *(doc for docs in task.held_out.values() for doc in docs))
    }
    return {name: ToolSpec.of_openai(native_schema(doc)) for name, doc in docs.items()}


class FormatReader:
    """What a family writes for some calls, parsed; the same calls are written once."""

    def __init__(self, family: Writer) -> None:
        self._family = family
        self._format = tool_format(family.format, family.tokenizer())
        self._read: dict[str, Parsed] = {}

    def __call__(self, calls: Calls) -> Parsed:
        text = json.dumps(calls)
        if text not in self._read:
            self._read[text] = self._format.parse(self._family.ids(calls), every_tool())
        return self._read[text]


def turns_of(task_id: str) -> list[Calls]:
    return [[(call.name, dict(call.arguments)) for call in calls] for calls in reference_turns(task_id)]


def replay(task_id: str, read: FormatReader) -> float:
    """Play a task's reference, one message of calls a turn; returns the grade."""
    probe = LocalProbe(BfclEnv)
    name, opened = probe.create(task_id, {"native_tools": True})
    tools = opened["info"]["tools"]
    for turn, calls in enumerate(turns_of(task_id)):
        if calls:
            parsed = read(calls)
            offered = {tool["function"]["name"] for tool in tools}
            assert task_id in UNOFFERED or all(call.name in offered for call in parsed.calls)
            assert not [
                problem for call in parsed.calls if (problem := every_spec()[call.name].problem(call.decoded()))
            ]
            listed = [call.to_openai(call_id(turn, place)) for place, call in enumerate(parsed.calls)]
            result = probe.step(name, {"role": "assistant", "content": parsed.content or None, "tool_calls": listed})
            assert [m["tool_call_id"] for m in result["state"]] == [call["id"] for call in listed]
        result = probe.step(name, {"role": "assistant", "content": "Done."})
        tools = result["info"].get("tools", tools)
    grade = probe.evaluate(name, {})
    probe.release(name)
    return grade if result["is_terminated"] else 0.0


def solved(task_ids: Iterable[str], read: FormatReader) -> int:
    return sum(replay(task_id, read) == 1.0 for task_id in task_ids)


@pytest.mark.thorough
@pytest.mark.parametrize("family", WRITERS)
def test_every_familys_calls_are_the_references(family: str) -> None:
    read = FormatReader(WRITERS[family])
    distinct = {json.dumps(calls) for task_id in all_task_ids()[::4] for calls in turns_of(task_id) if calls}
    for text in distinct:
        parsed = read([(name, arguments) for name, arguments in json.loads(text)])
        assert json.dumps([(call.name, call.decoded()) for call in parsed.calls]) == text and not parsed.problems


@pytest.mark.thorough
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_every_fortieth_task_is_solved_by_its_reference_in_each_format(name: str) -> None:
    assert solved(all_task_ids()[::40], FormatReader(writer(name))) == 20


@pytest.mark.service
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_all_800_tasks_are_solved_by_their_references_in_each_format(name: str) -> None:
    count = solved(all_task_ids(), FormatReader(writer(name)))
    print(f"{name}: {count}/800")
    assert count == 800
