"""Action formats: what ends an episode, what was refused, what kind of action it is."""

import re

import pytest
from questioning_fakes import LocalDesk

from task_manager.execution import World, execute
from task_manager.formats import AppworldFormat, BfclFormat, PlainFormat, PocketFormat, format_of, register_format
from task_manager.verify import flaw_of

CALL = '<tool_call>{"name": "ls", "arguments": {}}</tool_call>'
CODE = "```python\nprint(apis.todoist.show_projects(access_token=t))\napis.phone.login()\n```"


def result(text, terminated=False, **info):
    return {"state": [{"role": "user", "content": text}], "reward": 0.0, "is_terminated": terminated, "info": info}


@pytest.mark.parametrize(
    ("fmt", "action", "answer"),
    [
        (PocketFormat("pocket"), "done", ""),
        (PocketFormat("pocket"), "done 3", "3"),
        (PocketFormat("pocket"), "<think>done</think> note.find milk", None),
        (PocketFormat("pocket"), '<tool_call>{"name": "done", "arguments": {"answer": 5}}</tool_call>', "5"),
        (PocketFormat("pocket"), "<tool_call>{", None),
        (BfclFormat("bfcl"), CALL, None),
        (BfclFormat("bfcl"), "There are 3 files.", "There are 3 files."),
        (AppworldFormat("appworld"), CODE, None),
        (AppworldFormat("appworld"), "```python\napis.supervisor.complete_task(answer=3)\n```", "3"),
        (AppworldFormat("appworld"), "```python\napis.supervisor.complete_task()\n```", ""),
        (AppworldFormat("appworld"), "```python\napis.supervisor.complete_task(answer=total)\n```", "total"),
        (AppworldFormat("appworld"), '```python\napis.supervisor.complete_task(status="fail")\n```', ""),
        (PlainFormat("x"), "anything", None),
    ],
)
def test_the_action_that_ends_an_episode_is_known(fmt, action, answer):
    assert fmt.answer_of(action) == answer


@pytest.mark.parametrize("fmt", [PocketFormat("pocket"), AppworldFormat("appworld"), BfclFormat("bfcl")])
@pytest.mark.parametrize("answer", [None, "red"])
def test_the_closing_action_closes_and_is_added_once(fmt, answer):
    closing = fmt.closing(answer)
    assert fmt.answer_of(closing) is not None
    opening = CALL if fmt.env_type == "bfcl" else "note.list home"
    completed = fmt.complete([opening, " "], answer)
    assert completed == [opening, closing]
    assert fmt.complete([*completed, "more"], answer) == completed


def test_refusals_are_told_from_results():
    assert PocketFormat("pocket").refusal(result("err login first", refused=True)) == "err login first"
    assert PocketFormat("pocket").refusal(result("ok", refused=False)) is None
    bfcl = BfclFormat("bfcl")
    for text in ("Error during execution: x", '{"error": "no such file"}'):
        assert bfcl.refusal(result(f"<tool_response>\n{text}\n</tool_response>", calls=1, malformed_calls=0)) == text
    assert bfcl.refusal(result('<tool_response>\n{"result": "error free"}\n</tool_response>', calls=1, malformed_calls=0)) is None
    assert bfcl.refusal(result("Malformed tool call", calls=0, malformed_calls=1)) == "Malformed tool call"
    assert AppworldFormat("appworld").refusal(result("Traceback", failed=True, blocks=1)) == "Traceback"
    assert AppworldFormat("appworld").refusal(result("no code", failed=False, blocks=0)) == "no code"
    assert AppworldFormat("appworld").refusal(result("", failed=False, blocks=1)) is None


def test_kinds_of_actions():
    assert PocketFormat("pocket").signature("note.find milk") == "note.find"
    assert PocketFormat("pocket").signature("doc note.del") == "doc note.del"
    assert BfclFormat("bfcl").signature(CALL * 2) == "ls, ls"
    assert AppworldFormat("appworld").signature(CODE) == "todoist.show_projects, phone.login"
    assert len(PlainFormat("x").signature("x" * 500)) == 60


def test_an_unknown_environment_is_passed_on_as_it_is_and_can_be_made_known():
    assert type(format_of("moon")) is PlainFormat and not format_of("moon").executable
    register_format("moon", PocketFormat)
    assert isinstance(format_of("moon"), PocketFormat)
    register_format("moon", PlainFormat)


@pytest.mark.parametrize(
    ("actions", "flaw"),
    [
        (["note.tag n2 fun", "done"], None),
        (["note.list work", "done soap"], None),
        (["note.tag n3 fun", "done"], r"action 0 \(note.tag n3 fun\) was refused: err no such id n3"),
        (["note.tag n2 fun"], "the episode did not end after its 1 actions"),
        (["done", "note.tag n2 fun"], "1 actions left over"),
        (["note.list work", "done"], "changes nothing and answers nothing"),
        (["note.tag n2 work", "done"], "changes nothing and answers nothing"),
    ],
)
async def test_an_executed_solution_is_found_good_or_told_why_not(actions, flaw):
    client, fmt = LocalDesk(), format_of("pocket")
    execution = await execute(client, World("pocket", "note_add.k3.7"), fmt, actions)
    found = flaw_of(execution, fmt)
    assert found is None if flaw is None else re.search(flaw, str(found))
    assert not client.open
