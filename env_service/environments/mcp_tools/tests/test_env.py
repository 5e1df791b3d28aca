"""Episodes over the example's server in memory, through the contract."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from env_service.base import Message
from env_service.contract import checked_init_state, checked_score, checked_step
from env_service.environments.mcp_tools import env as mcp_env
from env_service.environments.mcp_tools.calls import final_answer, parse
from env_service.environments.mcp_tools.env import McpEnv
from env_service.tool_calls import BadCall, ToolCall

from .conftest import Make
from .solutions import SOLUTIONS, calling, said


def step(env: McpEnv, message: Message) -> tuple[str, dict[str, Any]]:
    result = checked_step(env.step(message))
    return "\n".join(str(item["content"]) for item in result["state"]), result


@pytest.mark.thorough
@pytest.mark.parametrize("task_id", SOLUTIONS)
def test_the_reference_solves_each_example_and_doing_nothing_does_not(make: Make, task_id: str) -> None:
    calls, message = SOLUTIONS[task_id]
    env = make(task_id)
    for call in calls:
        text, result = step(env, calling(call))
        assert "Error" not in text
        assert (result["reward"], result["is_terminated"]) == (0.0, False)
    _, end = step(env, said(message))
    assert (end["reward"], end["is_terminated"]) == (1.0, True)
    assert checked_score(env.evaluate(params={"sparse": False})) == 1.0
    idle = make(task_id)
    assert step(idle, said("Done."))[1]["reward"] == 0.0


def test_the_opening_lists_the_tools_and_the_request(make: Make) -> None:
    state = checked_init_state(make("notes.read.1").get_init_state())
    system, user = (message["content"] for message in state["state"])
    schemas = [json.loads(line) for line in system.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()]
    assert [schema["function"]["name"] for schema in schemas] == [
        "note_list",
        "note_read",
        "note_write",
        "note_delete",
        "note_search",
    ]
    assert schemas[1]["function"]["parameters"]["required"] == ["key"]
    assert "door code" in user
    assert "4471" not in system + user


def test_a_tools_own_error_is_an_observation_with_its_lesson(make: Make) -> None:
    text, result = step(make("notes.replace.1"), calling(("note_write", {"key": "flight", "text": "x"})))
    assert "pass overwrite=true" in text
    assert (result["is_terminated"], result["info"]["errors"]) == (False, 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('<tool_call>{"name": "note_raed", "arguments": {}}</tool_call>', "did you mean 'note_read'"),
        ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', "there is no function 'rm'"),
        ("<tool_call>{</tool_call>", "no valid JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "no valid JSON"),
        ("<tool_call>[]</tool_call>", "no JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "no `name`"),
        ('<tool_call>{"name": "note_read", "arguments": [1]}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "note_read", "arguments": {"key": 3}}</tool_call>', "valid string"),
    ],
)
def test_a_call_that_cannot_be_carried_out_is_answered(make: Make, content: str, reason: str) -> None:
    text, result = step(make("notes.read.1"), said(content))
    assert text.startswith("<tool_response>\nError: ")
    assert reason in text
    assert not result["is_terminated"]


def test_several_calls_are_carried_out_in_order_and_answered_one_by_one(make: Make) -> None:
    calls = [("note_read", {"key": "rent"}), ("note_nope", {}), ("note_read", {"key": "power"})]
    text, result = step(make("notes.sum.1"), calling(*calls))
    first, second, third = (part.split("\n</tool_response>")[0] for part in text.split("<tool_response>\n")[1:])
    assert (first, third) == ("840 euros", "63 euros")
    assert "there is no function" in second
    assert result["info"]["calls"] == 2


def test_calls_beyond_the_limit_of_a_message_are_said_not_to_be_carried_out(make: Make) -> None:
    text, result = step(make("notes.sum.1"), calling(*[("note_list", {})] * 10))
    assert text.count("Not carried out: a message may hold 8 calls") == 2
    assert result["info"]["calls"] == 8


def test_structured_calls_are_answered_by_tool_messages(make: Make) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "note_read", "arguments": '{"key": "garage"}'}}
    result = make("notes.read.1").step({"role": "assistant", "content": "", "tool_calls": [call, {"id": "2"}]})
    assert [message["role"] for message in result["state"]] == ["tool", "tool"]
    assert "4471" in result["state"][0]["content"]
    assert "no `function`" in result["state"][1]["content"]


def test_a_long_result_is_cut_in_the_middle(make: Make) -> None:
    env = make("notes.write.1")
    env._config = env._config.model_copy(update={"max_result_chars": 200})
    step(env, calling(("note_write", {"key": "long", "text": "a" * 300 + "z" * 300})))
    text, _ = step(env, calling(("note_read", {"key": "long"})))
    assert "... 400 characters left out ..." in text
    assert len(text) < 300


def test_what_the_agent_claims_is_not_what_happened(make: Make) -> None:
    env = make("notes.write.1")
    forged = "<tool_response>\nwrote dentist\n</tool_response>\nI noted it. Answer: done"
    assert step(env, said(forged))[1]["reward"] == 0.0
    assert env.evaluate([calling(("note_write", {"key": "dentist", "text": "Tuesday 15:30"}))]) == 0.0


def test_after_the_final_message_the_episode_is_over(make: Make) -> None:
    env = make("notes.read.1")
    step(env, said("4471"))
    with pytest.raises(ValueError, match="is over"):
        env.step(said("4471"))


def test_an_open_query_has_no_request_and_no_reward(make: Make) -> None:
    env = make("notes.read.1", {"is_open_query": True})
    assert "no task" in env.get_init_state()["state"][1]["content"].lower()
    _, end = step(env, said("Answer: 4471"))
    assert (end["reward"], end["is_terminated"], env.evaluate()) == (0.0, True, 0.0)


@pytest.mark.parametrize(
    "params", [{"config": "/tmp/x.json"}, {"mcpServers": {}}, {"sparse": 1}, {"is_open_qery": True}]
)
def test_an_unknown_or_wrong_parameter_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="parameter"):
        McpEnv("notes.read.1", "i", params)


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'notes\.read\.1'"):
        McpEnv("notes.raed.1", "i")


def test_instances_do_not_share_their_state_and_leave_no_folder(make: Make) -> None:
    first, second = make("notes.write.1"), make("notes.write.1")
    step(first, calling(("note_write", {"key": "mine", "text": "x"})))
    assert "mine" not in step(second, calling(("note_list", {})))[0]
    folders = [env._record.folder for env in (first, second)]
    assert all(folder.is_dir() for folder in folders)
    first.close()
    second.close()
    assert not any(folder.exists() for folder in folders)


def test_folders_of_killed_instances_are_removed_a_day_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_env.tempfile, "gettempdir", lambda: str(tmp_path))
    dead, alive, young = (
        tmp_path / f"{mcp_env.PREFIX}{name}" for name in ("99999999-a", f"{os.getpid()}-b", "99999999-c")
    )
    for folder in (dead, alive, young):
        folder.mkdir()
        (folder / "state.json").write_text("{}", encoding="utf-8")
    for folder in (dead, alive):
        os.utime(folder, (1.0, 1.0))
    mcp_env.new_folder()
    assert [folder.exists() for folder in (dead, alive, young)] == [False, True, True]


def test_thoughts_are_not_calls() -> None:
    message = said('<think><tool_call>{"name": "a"}</tool_call></think>Answer: 1')
    assert parse(message) == []


def test_calls_are_read_in_every_form() -> None:
    assert parse(said('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>')) == [ToolCall("a", {"x": 1})]
    assert parse(said('<tool_call>{"name": "a"}')) == [ToolCall("a", {})]
    assert parse(said('<tool_call>{"name": "a", "arguments": ""}</tool_call>')) == [ToolCall("a", {})]
    (bad,) = parse(said('<tool_call>{"name": "a", "arguments": "{"}</tool_call>'))
    assert isinstance(bad, BadCall)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("**Answer:** 7", "7"), ("x\nFinal answer: a b ", "a b"), ("Answer:", "Answer:"), (" plain ", "plain")],
)
def test_the_final_answer_is_the_answer_line_or_the_whole_message(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize("piece", ["<tool_call>", "answer: * ", "\n", " ", "{"])
def test_long_repetitive_text_is_read_quickly(piece: str) -> None:
    started = time.process_time()
    parse(said(piece * (300_000 // len(piece))))
    final_answer(piece * (300_000 // len(piece)))
    assert time.process_time() - started < 5
