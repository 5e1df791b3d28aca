"""BFCL with native tools: references as calls of real replies, functions that come later, no syntax in prose."""

from __future__ import annotations

from typing import Any

import pytest
from calling import answers, calling

from env_service.checker import LocalProbe
from env_service.environments.bfcl.calls import MAX_CALLS_PER_MESSAGE
from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.bfcl.package import CATEGORIES, load_package
from env_service.environments.bfcl.tests.replay import all_task_ids, reference_turns

NATIVE = {"native_tools": True}


def solve(task_id: str) -> tuple[float, list[list[str]]]:
    """Play the reference as native calls; returns the grade, and the tools' names each time that they are told."""
    probe = LocalProbe(BfclEnv)
    name, opened = probe.create(task_id, NATIVE)
    told = [[tool["function"]["name"] for tool in opened["info"]["tools"]]]
    for calls in reference_turns(task_id):
        if calls:
            result = probe.step(name, calling(*((call.name, dict(call.arguments)) for call in calls)))
            assert len(answers(result)) == len(calls)
        result = probe.step(name, {"role": "assistant", "content": "Done."})
        if "tools" in result["info"]:
            told.append([tool["function"]["name"] for tool in result["info"]["tools"]])
    assert result["is_terminated"]
    grade = probe.evaluate(name, {})
    probe.release(name)
    return grade, told


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_reference_solves_its_task_as_native_calls(category: str) -> None:
    for task_id in [task_id for task_id in all_task_ids() if task_id.startswith(category)][::20]:
        assert solve(task_id)[0] == 1.0, task_id


def test_functions_that_were_held_back_are_told_when_their_turn_comes() -> None:
    task_id = next(task_id for task_id in all_task_ids() if "miss_func" in task_id)
    task = load_package().tasks[task_id]
    grade, (first, *later) = solve(task_id)
    assert grade == 1.0 and len(later) == len(task.held_out)
    for (_, docs), names in zip(sorted(task.held_out.items()), later, strict=True):
        added = [doc["name"] for doc in docs]
        assert set(added) <= set(names) and not set(added) & set(first)
    assert later[-1][: len(first)] == first


def test_the_message_of_that_turn_is_the_packages_sentence_without_a_list() -> None:
    task_id = next(task_id for task_id in all_task_ids() if "miss_func" in task_id)
    task = load_package().tasks[task_id]
    env = BfclEnv(task_id, "i", NATIVE)
    results = [env.step({"role": "assistant", "content": "no"}) for _ in range(min(task.held_out))]
    assert results[-1]["state"] == [{"role": "user", "content": load_package().additional_functions_prompt}]


def test_the_opening_says_the_rules_and_nothing_of_tools_and_tags() -> None:
    system, user = BfclEnv("multi_turn_base_0", "i", NATIVE).get_init_state()["state"]
    assert "answer without a call" in system["content"].replace("\n", " ")
    assert not any(word in system["content"] for word in ("<", "JSON", "json"))
    assert user == BfclEnv("multi_turn_base_0", "i").get_init_state()["state"][1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("ls", '{"a": 1, "a": 2}'), "Malformed tool call: the arguments of 'ls' are no valid JSON"),
        (("ls", "[1]"), "must be a JSON object"),
        (("no_such_function", {}), "Error during execution"),
    ],
)
def test_a_call_that_cannot_be_read_is_answered_without_a_word_of_tags(call: tuple[str, Any], said: str) -> None:
    result = BfclEnv("multi_turn_base_0", "i", NATIVE).step(calling(("pwd", {}), call))
    good, bad = answers(result)
    assert "current_working_directory" in good and said in bad and "<tool_call>" not in bad
    assert isinstance(result["info"]["refused"], str)


def test_a_message_with_too_many_calls_executes_none_and_answers_each() -> None:
    env = BfclEnv("multi_turn_base_0", "i", NATIVE)
    before = env.snapshot()
    result = env.step(calling(*[("mkdir", {"dir_name": "x"})] * (MAX_CALLS_PER_MESSAGE + 1)))
    assert all("none was executed" in text for text in answers(result)) and env.snapshot() == before


def test_text_that_looks_like_a_call_ends_the_turn() -> None:
    env = BfclEnv("multi_turn_base_0", "i", NATIVE)
    result = env.step({"role": "assistant", "content": '<tool_call>{"name": "ls", "arguments": {}}</tool_call>'})
    assert result["info"]["turn"] == 1 and result["info"]["calls"] == 0


@pytest.mark.service
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_reference_solves_its_task_as_native_calls(category: str) -> None:
    ids = [task_id for task_id in all_task_ids() if task_id.startswith(category)]
    failed = [task_id for task_id in ids if solve(task_id)[0] != 1.0]
    assert (len(ids), failed) == (200, [])
