"""Action formats: what ends an episode, what was refused, what kind of action it is."""

import re
from importlib.metadata import EntryPoint

import pytest
from questioning_fakes import LocalDesk

from agentevolver.errors import ConfigError
from env_service.action_format import ToolCallFormat
from env_service.environments.appworld.action_format import Format as AppworldFormat
from env_service.environments.gymnasium.action_format import Format as GymnasiumFormat
from env_service.environments.pocket.action_format import Format as PocketFormat
from env_service.environments.python_tool.action_format import Format as PythonFormat
from env_service.protocol import EnvCrashed, EnvRequestError
from task_manager.actions import PlainFormat, format_of, read_state, register_format
from task_manager.verify import flaw_of
from task_manager.world import World, execute

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
        (ToolCallFormat("bfcl"), CALL, None),
        (ToolCallFormat("bfcl"), "There are 3 files.", "There are 3 files."),
        (AppworldFormat("appworld"), CODE, None),
        (AppworldFormat("appworld"), "```python\napis.supervisor.complete_task(answer=3)\n```", "3"),
        (AppworldFormat("appworld"), "```python\napis.supervisor.complete_task()\n```", ""),
        (AppworldFormat("appworld"), "```python\napis.supervisor.complete_task(answer=total)\n```", "total"),
        (AppworldFormat("appworld"), '```python\napis.supervisor.complete_task(status="fail")\n```', ""),
        (PythonFormat("python"), "```python\n1\n```", None),
        (PythonFormat("python"), "so it is \\boxed{3/4}", "3/4"),
        (GymnasiumFormat("gymnasium"), "action: down", None),
        (GymnasiumFormat("gymnasium"), "I am there.\naction: done 4", "4"),
        (PlainFormat("x"), "anything", None),
    ],
)
def test_the_action_that_ends_an_episode_is_known(fmt, action, answer):
    assert fmt.answer_of(action) == answer


@pytest.mark.parametrize("fmt", [PocketFormat("pocket"), AppworldFormat("appworld"), ToolCallFormat("bfcl")])
@pytest.mark.parametrize("answer", [None, "red"])
def test_the_closing_action_closes_and_is_added_once(fmt, answer):
    closing = fmt.closing(answer)
    assert fmt.answer_of(closing) is not None
    opening = CALL if fmt.env_type == "bfcl" else "note.list home"
    completed = fmt.complete([opening, " "], answer)
    assert completed == [opening, closing]
    assert fmt.complete([*completed, "more"], answer) == completed


def test_what_an_action_did_is_what_the_environment_says():
    fmt = format_of("moon")
    assert fmt.refusal(result("err login first", refused=True)) == "err login first"
    assert fmt.refusal(result("three results", refused="the second call failed")) == "the second call failed"
    assert fmt.refusal(result("ok", refused=False)) is None
    assert fmt.finished(result("bye", terminated=True, finished=True)) and not fmt.finished(
        result("late", terminated=True, finished=False)
    )
    assert fmt.tells(result("ok", refused=False)) and fmt.tells(result("ok", finished=False))
    silent = result("you are over the hill", terminated=True)
    assert not fmt.tells(silent) and fmt.refusal(silent) is None and fmt.finished(silent)


@pytest.mark.parametrize(
    ("env_type", "name", "arguments", "action"),
    [
        (
            "bfcl",
            "ls",
            {},
            CALL.replace("><", ">").replace("<tool_call>", "<tool_call>\n").replace("</tool_call>", "\n</tool_call>"),
        ),
        ("appworld", "appworld", {"code": "print(1)"}, "```python\nprint(1)\n```"),
        ("appworld", "complete_task", {"answer": 3}, "```python\napis.supervisor.complete_task(answer=3)\n```"),
        ("appworld", "todoist.show_projects", {"page": 1}, "```python\nprint(apis.todoist.show_projects(page=1))\n```"),
        ("appworld", "rm -rf", {}, None),
        ("appworld", "a.b", {"x)": 1}, None),
        ("gymnasium", "act", {"action": "down"}, "action: down"),
        ("gymnasium", "pick up", {}, "action: pick up"),
        ("gymnasium", "act", {"x": 1, "y": 2}, None),
    ],
)
def test_a_native_tool_call_is_written_as_the_environment_reads_it(env_type, name, arguments, action):
    assert format_of(env_type).action_of_call(name, arguments) == action


async def test_a_state_is_read_where_one_is_told():
    class Client:
        def __init__(self, told):
            self.told = told

        async def get_tools_info(self, instance_id, messages=None, params=None):
            if isinstance(self.told, Exception):
                raise self.told
            return self.told

    told = {"facts": {"note": {"n1": [1, 2]}}, "answer": "3", "finished": True, "exact": True}
    state = await read_state(Client(told), "i")
    assert (state.facts, state.answer, state.finished, state.exact, state.prose) == (
        {"note/n1": [1, 2]},
        "3",
        True,
        True,
        False,
    )
    for nothing in (None, [], {"tools": []}, {"facts": 3}, EnvRequestError("there is no `what`")):
        assert await read_state(Client(nothing), "i") is None
    with pytest.raises(EnvCrashed):
        await read_state(Client(EnvCrashed("gone")), "i")


def test_kinds_of_actions():
    assert PocketFormat("pocket").signature("note.find milk") == "note.find"
    assert PocketFormat("pocket").signature("doc note.del") == "doc note.del"
    assert ToolCallFormat("bfcl").signature(CALL * 2) == "ls, ls"
    assert AppworldFormat("appworld").signature(CODE) == "todoist.show_projects, phone.login"
    assert len(PlainFormat("x").signature("x" * 500)) == 60


def test_an_unknown_environment_is_read_by_the_contract_and_can_be_given_a_format(monkeypatch):
    assert type(format_of("moon")) is PlainFormat and format_of("moon").executable
    monkeypatch.setattr("task_manager.actions._registered", {})
    register_format("moon", PocketFormat)
    assert isinstance(format_of("moon"), PocketFormat)
    assert isinstance(format_of("moon", "env_service.environments.appworld.action_format:Format"), AppworldFormat)


def test_a_format_is_found_by_its_entry_point(monkeypatch):
    point = EntryPoint("moon", "env_service.environments.gymnasium.action_format:Format", "agentevolver.action_formats")
    monkeypatch.setattr(
        "task_manager.actions.entry_points",
        lambda group, name: [point] if (group, name) == (point.group, "moon") else [],
    )
    assert isinstance(format_of("moon"), GymnasiumFormat)


@pytest.mark.parametrize(
    "spec", ["nowhere.at_all:Format", "task_manager.actions:WorldState", "task_manager.actions:Nothing", "formats"]
)
def test_a_class_that_is_no_format_is_refused(spec):
    with pytest.raises(ConfigError, match=spec):
        format_of("moon", spec)


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


def test_the_long_goals_of_pocket_app_have_the_budget_of_its_own_tasks_and_a_longer_look_around():
    pocket, app = format_of("pocket"), format_of("pocket_app")
    assert (pocket.exploration, app.exploration) == ((4, 8), (4, 12))
    assert pocket.task_params(10, {}) == {"explore_steps": 11}
    assert app.task_params(10, {}) == {"explore_steps": 18}
    assert app.task_params(10, {"slack": 2}) == {"explore_steps": 12}
    assert app.task_params(29, {}) == {"explore_steps": 30}
