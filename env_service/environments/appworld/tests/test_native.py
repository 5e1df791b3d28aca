"""AppWorld with native tools: code as calls of one tool, each answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from appworld_tiny.catalogue import TASKS
from calling import answers, calling

from env_service.contract import checked_step, checked_tools
from env_service.environments.appworld.env import AppworldEnv

pytestmark = pytest.mark.service
OpenEnv = Callable[..., AppworldEnv]


def code(*sources: str) -> dict[str, object]:
    return calling(*(("appworld", {"code": source}) for source in sources))


@pytest.mark.parametrize("simple", [False, True])
def test_the_opening_says_the_rules_and_not_how_to_write_code_into_a_message(open_env: OpenEnv, simple: bool) -> None:
    env = open_env("notecount_2", native_tools=True, simple=simple)
    system, user = env.get_init_state()["state"]
    assert "complete_task" in system["content"] and "all the tool" in system["content"]
    assert not any(words in system["content"] for words in ("fenced", "blocks", "with code only"))
    assert user["content"] == TASKS["notecount_2"].instruction
    (tool,) = checked_tools(env.tools())
    assert (tool["function"]["name"], tool["function"]["parameters"]["required"]) == ("appworld", ["code"])


def test_a_task_is_solved_by_calls_that_are_answered_one_by_one(open_env: OpenEnv) -> None:
    env = open_env("notecount_1", native_tools=True)
    result = checked_step(env.step(code("x = 41", "print(x + 1)")))
    assert answers(result) == ["Execution successful.", "42"]
    assert (result["info"]["blocks"], result["info"]["executed"], result["info"]["refused"]) == (2, 2, False)
    result = env.step(code("apis.supervisor.complete_task(answer=7)", "print(1)"))
    assert answers(result)[1] == "Not executed, because the task is completed."
    assert (result["is_terminated"], result["info"]["stop_reason"]) == (True, "finished")


def test_after_a_call_that_fails_the_rest_is_not_executed_and_says_why(open_env: OpenEnv) -> None:
    env = open_env("notecount_1", native_tools=True)
    result = env.step(calling(("shell", {}), ("appworld", {"code": "1 / 0"}), ("appworld", {"code": "print(1)"})))
    unknown, failed, skipped = answers(result)
    assert "no tool called 'shell'" in unknown and "ZeroDivisionError" in failed
    assert skipped == "Not executed, because block 1 failed."
    assert "ZeroDivisionError" in str(result["info"]["refused"])


def test_a_message_without_a_call_executes_nothing(open_env: OpenEnv) -> None:
    env = open_env("notecount_1", native_tools=True, max_interactions=2)
    result = env.step({"role": "assistant", "content": "```python\nprint(1)\n```"})
    assert result["state"][0]["role"] == "user" and "holds no call of the tool" in result["state"][0]["content"]
    assert result["info"]["executed"] == 0 and result["info"]["refused"]
    (last,) = answers(env.step(calling(("appworld", '{"code": 3}'))))
    assert "must be a JSON object" in last and "limit of 2 interactions" in last
