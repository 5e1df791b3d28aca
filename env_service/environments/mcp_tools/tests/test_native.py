"""The mcp environment with native tools: the servers' schemas as they are, names that chat APIs take."""

from __future__ import annotations

import json
import re

import pytest
from calling import answers, calling

from env_service.contract import checked_tools
from env_service.environments.mcp_tools.prompts import native_names

from .conftest import Make
from .solutions import SOLUTIONS, said

NATIVE = {"native_tools": True}


@pytest.mark.parametrize("task_id", list(SOLUTIONS))
def test_the_solutions_score_one_as_native_calls(make: Make, task_id: str) -> None:
    env = make(task_id, NATIVE)
    calls, message = SOLUTIONS[task_id]
    if calls:
        assert not any(text.startswith("Error") for text in answers(env.step(calling(*calls))))
    assert env.step(said(message))["reward"] == 1.0


def test_the_opening_lists_no_tools_and_tools_are_the_servers(make: Make) -> None:
    env = make("notes.read.1", NATIVE)
    system = env.get_init_state()["state"][0]["content"]
    assert "Answer:" in system and not re.search("[<{]", system)
    tools = checked_tools(env.tools())
    assert [tool["function"]["name"] for tool in tools][:2] == ["note_list", "note_read"]
    assert tools == env.get_info()["tools"]


def test_bad_calls_are_answered_in_their_places_and_text_in_tags_is_no_call(make: Make) -> None:
    env = make("notes.read.1", NATIVE)
    result = env.step(
        calling(("note_raed", {}), ("note_read", '{"key": 1, "key": 2}'), ("note_read", {"key": "garage"}))
    )
    unknown, broken, right = answers(result)
    assert "did you mean 'note_read'" in unknown and "'key' is given twice" in broken and "4471" in right
    end = env.step(said('<tool_call>{"name": "note_list", "arguments": {}}</tool_call>'))
    assert end["is_terminated"] and end["info"]["calls"] == 1


def test_names_that_no_chat_api_takes_get_one_each_and_the_others_keep_theirs() -> None:
    names = ["a.b", "a_b", "a/b", "x" * 70, "x" * 69, "é"]
    given = native_names(names)
    assert sorted(given.values()) == sorted(names) and given["a_b"] == "a_b"
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in given)
    assert native_names(names) == json.loads(json.dumps(given))


def test_a_tool_of_a_name_that_is_not_taken_is_called_by_the_one_that_is(make: Make) -> None:
    env = make("notes.read.1", NATIVE)
    tool = env._servers.tools["note_list"]
    env._servers.tools["notes.list"] = tool
    assert "notes_list" in [tool["function"]["name"] for tool in checked_tools(env.tools())]
    (listed,) = answers(env.step(calling(("notes_list", {}))))
    assert "Error: there is no function" not in listed
    assert env._record.calls[-1][0] == "notes.list"
