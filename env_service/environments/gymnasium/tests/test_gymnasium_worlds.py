"""Other worlds: any registered environment with discrete or text spaces, described by a few lines or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from env_service.base import Message
from env_service.environments.gymnasium import GymnasiumEnv, World
from env_service.environments.gymnasium.toy_text import shortest_plan

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")


class Spell(gymnasium.Env):  # type: ignore[misc]
    """Say the word that is shown, one text action, one text observation."""

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Text(max_length=5, charset="abc")
        self.observation_space = gymnasium.spaces.Dict(
            {"word": gymnasium.spaces.Text(5, charset="abc"), "n": gymnasium.spaces.Discrete(9)}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.word = "".join(self.np_random.choice(list("abc"), size=4))
        return {"word": self.word, "n": 4}, {}

    def step(self, action: str) -> Any:
        return {"word": self.word, "n": 4}, float(action == self.word), True, False, {}


class Continuous(gymnasium.Env):  # type: ignore[misc]
    """Cannot be written as text."""

    action_space = gymnasium.spaces.Box(0, 1)
    observation_space = gymnasium.spaces.Discrete(2)


gymnasium.register("test/Spell-v0", entry_point=Spell)
gymnasium.register("test/Continuous-v0", entry_point=Continuous)


class Others(GymnasiumEnv):
    worlds: ClassVar[Mapping[str, World]] = {
        world.env_id: world
        for world in (
            World("Blackjack-v1", goal="Beat the dealer.", action_names=("stick", "hit"), max_steps=9),
            World("CliffWalking-v1", goal="Reach the lower right corner.", success_return=-13),
            World("test/Spell-v0", goal="Spell the word."),
            World("test/Continuous-v0", goal="?"),
        )
    }


class Misnamed(GymnasiumEnv):
    worlds: ClassVar[Mapping[str, World]] = {
        "Blackjack-v1": World("Blackjack-v1", goal="Beat the dealer.", action_names=("stick",))
    }


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_a_registered_environment_needs_a_goal_and_no_more() -> None:
    env = Others("Blackjack-v1:seed=7", "i")
    opening = env.get_init_state()["state"]
    assert "0 stick, 1 hit" in opening[0]["content"] and "You have 9 actions" in opening[0]["content"]
    assert opening[1]["content"].startswith("Beat the dealer.\n\nObservation: (")
    while not (answer := env.step(said("action: stick")))["is_terminated"]:
        pass
    assert env.evaluate() == env.evaluate(params={"sparse": False}) == float(answer["reward"] > 0)


def test_actions_without_names_are_numbers_and_the_return_decides() -> None:
    env = Others("CliffWalking-v1:seed=0", "i")
    assert "The actions are: 0, 1, 2, 3." in env.get_init_state()["state"][0]["content"]
    for action in [0, *[1] * 11, 2]:
        env.step(said(str(action)))
    assert env.evaluate() == 1.0
    slow = Others("CliffWalking-v1:seed=0", "i")
    for action in [0, 0, *[1] * 11, 2, 2]:
        slow.step(said(str(action)))
    assert (slow.get_info()["stop_reason"], slow.evaluate()) == ("finished", 0.0)


def test_a_text_space_takes_the_text_and_teaches_its_limits() -> None:
    env = Others("test/Spell-v0:seed=3", "i")
    word = env.get_init_state()["state"][1]["content"].partition("word: ")[2].partition(",")[0]
    answer = env.step(said("action: xyz"))
    assert "1 to 5 characters" in answer["state"][0]["content"] and "abc" in answer["state"][0]["content"]
    assert env.step(said(f"action: {word}"))["is_terminated"]
    assert env.evaluate() == 1.0


def test_the_seed_decides_the_task() -> None:
    openings = {
        seed: Others(f"test/Spell-v0:seed={seed}", "i").get_init_state()["state"][1]["content"] for seed in (1, 2)
    }
    assert openings[1] != openings[2]
    assert Others("test/Spell-v0:seed=1", "i").get_init_state()["state"][1]["content"] == openings[1]


def test_spaces_that_are_not_discrete_or_text_are_refused_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match="only discrete and text spaces"):
        Others("test/Continuous-v0:seed=0", "i")
    with pytest.raises(RuntimeError, match="has 2 actions, but its world's `action_names` 1"):
        Misnamed("Blackjack-v1:seed=0", "i")


def test_a_subclass_lists_its_own_worlds_and_the_shipped_class_does_not_know_them() -> None:
    assert {task_id.partition(":")[0] for task_id in Others.get_query_list("val")} == set(Others.worlds)
    with pytest.raises(ValueError, match="is not a world"):
        GymnasiumEnv("test/Spell-v0:seed=1", "i")


def test_the_search_finds_the_fewest_actions_and_knows_when_there_is_no_way() -> None:
    table = {
        0: {0: [(1.0, 1, 0, False)], 1: [(1.0, 2, 0, False)]},
        1: {0: [(1.0, 1, 0, True)], 1: [(1.0, 0, 0, False)]},
        2: {0: [(1.0, 3, 1, True)], 1: [(1.0, 2, 0, False)]},
        3: {0: [(1.0, 3, 0, True)], 1: [(1.0, 3, 0, True)]},
    }
    assert shortest_plan(table, 0) == [1, 0]
    assert shortest_plan(table, 3) is None
