"""Action formats: what ends an episode, how a native call is written, what kind of action it is."""

import pytest

from env_service.environments.pocket.action_format import PocketFormat
from task_manager.actions import format_of


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("done", ""),
        ("done 3", "3"),
        ("<think>done</think> note.find milk", None),
        ('<tool_call>{"name": "done", "arguments": {"answer": 5}}</tool_call>', "5"),
        ("<tool_call>{", None),
    ],
)
def test_the_action_that_ends_an_episode_is_known(action, answer):
    assert PocketFormat("pocket").answer_of(action) == answer


@pytest.mark.parametrize("answer", [None, "red"])
def test_the_closing_action_closes_and_is_added_once(answer):
    fmt = PocketFormat("pocket")
    closing = fmt.closing(answer)
    assert fmt.answer_of(closing) is not None
    completed = fmt.complete(["note.list home", " "], answer)
    assert completed == ["note.list home", closing]
    assert fmt.complete([*completed, "more"], answer) == completed


def test_kinds_of_actions():
    assert PocketFormat("pocket").signature("note.find milk") == "note.find"
    assert PocketFormat("pocket").signature("doc note.del") == "doc note.del"


def test_the_long_goals_of_pocket_app_have_the_budget_of_its_own_tasks_and_a_longer_look_around():
    pocket, app = format_of("pocket"), format_of("pocket_app")
    assert (pocket.exploration, app.exploration) == ((4, 8), (4, 12))
    assert pocket.task_params(10, {}) == {"explore_steps": 11}
    assert app.task_params(10, {}) == {"explore_steps": 18}
    assert app.task_params(10, {"slack": 2}) == {"explore_steps": 12}
    assert app.task_params(29, {}) == {"explore_steps": 30}
