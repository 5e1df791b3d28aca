"""The python environment with native tools: code in calls, an answer in a message without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from calling import answers, calling

from env_service.contract import checked_init_state, checked_tools
from env_service.environments.python_tool import env as env_module
from env_service.environments.python_tool.env import PythonEnv

pytestmark = pytest.mark.service  # starts sandboxes

Make = Callable[..., PythonEnv]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[PythonEnv] = []

    def create(**params: Any) -> PythonEnv:
        given = {"native_tools": True, **params}
        made.append(PythonEnv(PythonEnv.get_query_list("train")[0], "i", given))
        checked_init_state(made[-1].get_init_state(given))
        return made[-1]

    yield create
    for env in made:
        env.close()


def test_the_opening_keeps_the_rules_and_says_nothing_of_writing_code(make: Make) -> None:
    env = make()
    system = env.get_init_state()["state"][0]["content"]
    assert "Each run may take" in system and "reply without a call" in system and "\\boxed{" in system
    assert not any(word in system for word in ("```", "tool_call", "block"))
    assert [tool["function"]["name"] for tool in checked_tools(env.tools())] == ["python"]


def test_calls_run_in_order_in_one_interpreter_and_are_answered_one_by_one(make: Make) -> None:
    env = make()
    result = env.step(calling(("python", {"code": "x = 20"}), ("python", {"code": "x + 1"}), ("python", {"code": "y"})))
    first, second, third = answers(result)
    assert first.startswith("(no output") and second == "21" and "NameError" in third
    assert (result["info"]["calls"], result["info"]["status"], result["info"]["refused"]) == (3, "error", True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("bash", {"code": "1"}), "There is no tool 'bash', the only one is python"),
        (("python", {"source": "1"}), "no text `code`"),
        (("python", '{"code": "1"'), "no valid JSON"),
    ],
)
def test_a_call_without_code_is_told_so_and_the_others_run(make: Make, call: tuple[str, Any], said: str) -> None:
    result = make().step(calling(call, ("python", {"code": "1 + 1"})))
    wrong, right = answers(result)
    assert said in wrong and "<tool_call>" not in wrong and right == "2"
    assert (result["info"]["status"], isinstance(result["info"]["refused"], str)) == ("no_action", True)


def test_a_message_without_a_call_is_the_answer_and_its_code_is_not_run(make: Make) -> None:
    env = make()
    shown = env.step({"role": "assistant", "content": "```python\nprint(1)\n```"})
    assert (shown["info"]["status"], shown["info"]["calls"]) == ("no_action", 0)
    assert "neither a call nor an answer" in shown["state"][0]["content"] and shown["state"][0]["role"] == "user"
    end = env.step({"role": "assistant", "content": "```python\nprint(1)\n```\n\\boxed{7}"})
    assert (end["is_terminated"], end["info"]["answer"]) == (True, "7")


def test_calls_beyond_the_time_of_a_message_are_said_not_to_have_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_module, "_STEP_BUDGET_S", 0.2)
    env = make()
    slow = ("python", {"code": "import time; time.sleep(0.3)"})
    result = env.step(calling(slow, slow, slow))
    assert ["time for the calls" in text for text in answers(result)] == [False, True, True]
    assert result["info"]["calls"] == 1
