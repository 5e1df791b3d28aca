"""Gymnasium's worlds with native tools: plans as calls of `act`, and an end by `done` where there is no goal."""

from __future__ import annotations

from typing import Any

import pytest
from calling import answers, calling

from env_service.checker import LocalProbe
from env_service.environments.gymnasium.env import GymnasiumEnv
from env_service.environments.gymnasium.world import NamedActions, TextActions

gymnasium = pytest.importorskip("gymnasium", reason="see env_service/environments/gymnasium/README.md")
NATIVE = {"native_tools": True}


def tools_of(task_id: str, **params: Any) -> dict[str, dict[str, Any]]:
    _, opened = LocalProbe(GymnasiumEnv).create(task_id, {**NATIVE, **params})
    assert not any(word in str(opened["state"]) for word in ("one line", "action:"))
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in opened["info"]["tools"]}


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "all at once"])
def test_shortest_plans_reach_the_goal_as_native_calls(together: bool) -> None:
    for task_id in GymnasiumEnv.get_query_list("val"):
        env = GymnasiumEnv(task_id, "i", NATIVE)
        names = env._world.action_names
        plan = [("act", {"action": names[number]}) for number in env._plan or ()]
        result = None
        for group in [plan] if together else [[call] for call in plan]:
            result = env.step(calling(*group))
            assert len(answers(result)) == len(group)
        assert result is not None and env.evaluate() == 1.0 and result["is_terminated"], task_id
        assert result["info"]["steps"] == len(plan)
        env.close()


def test_an_action_is_one_of_the_worlds_names() -> None:
    assert tools_of("FrozenLake-v1:seed=3") == {
        "act": {
            "type": "object",
            "properties": {"action": {"type": "string", "enum": ["left", "down", "right", "up"]}},
            "required": ["action"],
        }
    }
    assert list(tools_of("FrozenLake-v1:seed=3", is_open_query=True)) == ["act", "done"]


def test_actions_without_names_are_numbers_and_those_of_a_text_space_texts() -> None:
    numbers = NamedActions(("3", "4", "5"), 3)
    assert numbers.schema() == {"type": "integer", "enum": [3, 4, 5]}
    assert [numbers.chosen(value) for value in (3, "5", 6, None, {})] == [3, 5, None, None, None]
    texts = TextActions(gymnasium.spaces.Text(min_length=2, max_length=4, charset="ab"))
    assert (texts.schema()["minLength"], texts.schema()["maxLength"]) == (2, 4)
    assert [texts.chosen(value) for value in ("abba", "abc", "a", 3)] == ["abba", None, None, None]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("act", {"action": "jump"}), "`jump` is not an action. The actions are: 0 left"),
        (("act", {}), "`act` takes one argument, `action`"),
        (("act", {"action": "up", "times": 2}), "`act` takes one argument, `action`"),
        (("act", "{"), "no valid JSON"),
        (("done", {}), "There is no tool `done`"),
    ],
)
def test_a_call_that_is_no_action_is_answered_and_costs_a_step(call: tuple[str, Any], said: str) -> None:
    env = GymnasiumEnv("FrozenLake-v1:seed=3", "i", NATIVE)
    result = env.step(calling(call))
    (text,) = answers(result)
    assert said in text and "call of act" in text
    assert (result["info"]["refused"], result["info"]["steps"], result["is_terminated"]) == (True, 1, False)


def test_a_message_without_a_call_is_told_what_to_call() -> None:
    env = GymnasiumEnv("FrozenLake-v1:seed=3", "i", NATIVE)
    result = env.step({"role": "assistant", "content": "action: up"})
    assert result["state"][0]["role"] == "user" and "call of act" in result["state"][0]["content"]
    assert result["info"]["refused"] and env._rewards == []


def test_the_steps_of_one_message_end_with_the_episode() -> None:
    env = GymnasiumEnv("FrozenLake-v1:seed=3", "i", {**NATIVE, "max_steps": 2})
    result = env.step(calling(*[("act", {"action": "left"})] * 4))
    texts = answers(result)
    assert texts[1].endswith("The episode is over.") and texts[2:] == ["Not taken: the episode is over."] * 2
    assert (result["info"]["steps"], result["info"]["stop_reason"]) == (2, "max_steps")


def test_an_episode_without_a_goal_ends_with_done_and_its_answer() -> None:
    env = GymnasiumEnv("FrozenLake-v1:seed=3", "i", {**NATIVE, "is_open_query": True})
    result = env.step(calling(("act", {"action": "left"}), ("done", {"answer": "ice"})))
    assert (result["info"]["finished"], result["info"]["answer"], result["info"]["refused"]) == (True, "ice", False)
    assert env.evaluate() == 0.0
