"""Action formats: what ends an episode, how a native call is written, what kind of action it is."""

import pytest

from env_service.environments.appworld.action_format import AppWorldFormat

CODE = "```python\nprint(apis.todoist.show_projects(access_token=t))\napis.phone.login()\n```"


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (CODE, None),
        ("```python\napis.supervisor.complete_task(answer=3)\n```", "3"),
        ("```python\napis.supervisor.complete_task()\n```", ""),
        ("```python\napis.supervisor.complete_task(answer=total)\n```", "total"),
        ('```python\napis.supervisor.complete_task(status="fail")\n```', ""),
    ],
)
def test_the_action_that_ends_an_episode_is_known(action, answer):
    assert AppWorldFormat("appworld").answer_of(action) == answer


@pytest.mark.parametrize("answer", [None, "red"])
def test_the_closing_action_closes_and_is_added_once(answer):
    fmt = AppWorldFormat("appworld")
    closing = fmt.closing(answer)
    assert fmt.answer_of(closing) is not None
    completed = fmt.complete([CODE, " "], answer)
    assert completed == [CODE, closing]
    assert fmt.complete([*completed, "more"], answer) == completed


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("appworld", {"code": "print(1)"}, "```python\nprint(1)\n```"),
        ("complete_task", {"answer": 3}, "```python\napis.supervisor.complete_task(answer=3)\n```"),
        ("todoist.show_projects", {"page": 1}, "```python\nprint(apis.todoist.show_projects(page=1))\n```"),
        ("rm -rf", {}, None),
        ("a.b", {"x)": 1}, None),
    ],
)
def test_a_native_tool_call_is_written_as_the_environment_reads_it(name, arguments, action):
    assert AppWorldFormat("appworld").action_of_call(name, arguments) == action


def test_kinds_of_actions():
    assert AppWorldFormat("appworld").signature(CODE) == "todoist.show_projects, phone.login"
