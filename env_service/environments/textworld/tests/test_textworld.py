"""TextWorld: the walkthrough of each kind wins, sub-goals are worth their share, and whatever is written is answered.

Making a game takes seconds: these tests make six.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from calling import answers, calling

from env_service.contract import checked_init_state, checked_step
from env_service.environments.textworld import games
from env_service.environments.textworld.env import TextworldEnv
from env_service.environments.textworld.games import GameId, TextworldNotInstalled, game_file

# TextWorld's warnings have classes that the process which gathers the tests' results cannot import.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GAMES = [
    "treasure_hunter.10.1000",
    "coin_collector.4.0",
    "simple.1.100",
    "simple.3.1000",
    "cooking.1.0",
    "cooking.6.1001",
    "custom.1.1000",
]


def begun(task_id: str, **params: Any) -> TextworldEnv:
    env = TextworldEnv(task_id, "one", params)
    checked_init_state(env.get_init_state())
    return env


def does(env: TextworldEnv, command: str) -> Any:
    return checked_step(env.step({"role": "assistant", "content": f"I will.\naction: {command}"}))


def test_what_cannot_be_imported_names_the_remedy_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(games.importlib, "import_module", missing)  # type: ignore[attr-defined]
    games.package.cache_clear()
    with pytest.raises(TextworldNotInstalled, match=r"textworld/setup\.sh"):
        games.package()
    games.package.cache_clear()


def test_seeds_part_the_splits_without_the_package() -> None:
    ids = {split: TextworldEnv.get_query_list(split) for split in ("train", "dev", "test")}
    assert ids["train"][:2] == ["treasure_hunter.1.1000", "treasure_hunter.1.1001"] and len(ids["train"]) == 60
    assert all(GameId.read(task).split == split for split, tasks in ids.items() for task in tasks)
    chosen = TextworldEnv.get_query_list("dev", {"kinds": ["cooking", "simple"], "levels": [2, 3], "seeds": 2})
    assert chosen[:5] == ["cooking.2.0", "cooking.2.1", "cooking.3.0", "cooking.3.1", "simple.2.0"]


@pytest.mark.parametrize(
    ("split", "params", "match"),
    [
        ("val2", {}, "train"),
        ("train", {"kind": 1}, "known: kinds"),
        ("train", {"kinds": ["chess"]}, "list with some of"),
        ("train", {"levels": [31]}, "levels 1 to 30"),
        ("train", {"levels": ["1"]}, "whole numbers"),
        ("train", {"seeds": 0}, "1 to 100"),
    ],
)
def test_a_list_of_games_that_cannot_be_is_refused_without_the_package(
    split: str, params: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        TextworldEnv.get_query_list(split, params)


@pytest.mark.parametrize(
    "task_id", ["", "chess.1.1", "simple.4.1", "simple.0.1", "simple.1.01", "simple.1.1000000", "a/b"]
)
def test_a_game_that_is_none_is_refused_without_the_package(task_id: str) -> None:
    with pytest.raises(ValueError, match=r"no TextWorld game|levels 1 to 3"):
        GameId.read(task_id)


@pytest.mark.service
@pytest.mark.parametrize("task_id", GAMES)
def test_the_walkthrough_wins_and_each_step_of_it_is_worth_no_less(task_id: str) -> None:
    env = begun(task_id)
    worth = [env.evaluate(params={"sparse": False})]
    result: Any = {}
    for command in env.get_info(params={"what": "walkthrough"}):
        assert env.evaluate() == 0.0
        result = does(env, command)
        assert result["info"]["refused"] is False
        worth.append(env.evaluate(params={"sparse": False}))
    assert (result["reward"], result["info"]["finished"], env.evaluate()) == (1.0, True, 1.0)
    assert worth == sorted(worth) and worth[0] == 0.0 and worth[-1] == 1.0 and len(set(worth)) > len(worth) // 2
    assert "RESTART" not in result["state"][0]["content"]
    with pytest.raises(ValueError, match="over"):
        does(env, "look")
    env.close()


@pytest.mark.service
def test_a_game_is_made_once_and_starts_the_same() -> None:
    file = game_file(GameId.read("cooking.1.0"))
    before = os.stat(file).st_mtime_ns
    one, other = TextworldEnv("cooking.1.0", "a"), TextworldEnv("cooking.1.0", "b")
    assert one.get_init_state()["state"] == other.get_init_state()["state"]
    assert os.stat(file).st_mtime_ns == before and not list(file.parent.glob(".making-*"))
    does(one, one.get_info(params={"what": "walkthrough"})[0])
    state = other.get_info(params={"what": "state"})
    assert state != one.get_info(params={"what": "state"}) and state["exact"] and len(state["facts"]["facts"]) > 5


@pytest.mark.service
def test_whatever_is_written_is_answered() -> None:
    rng = random.Random(3)
    words = [
        "go",
        "take",
        "put",
        "open",
        "north",
        "key",
        "on",
        "table",
        "quit",
        "save",
        "undo",
        "x" * 200,
        "ä",
        ".",
        "\x00",
        "",
        "\n",
    ]
    env = begun("simple.1.100", max_steps=1000)
    for _ in range(200):
        does(env, " ".join(rng.choices(words, k=rng.randrange(5))))
    assert does(env, "restart")["info"]["refused"] and does(env, "inventory")["info"]["refused"] is False
    assert env.step({"role": "assistant", "content": "hm"})["state"][0]["content"].startswith(
        "This reply holds no command"
    )


@pytest.mark.service
def test_native_calls_are_answered_each_until_the_steps_are_spent() -> None:
    env = begun("cooking.1.0", native_tools=True, max_steps=2, admissible=True)
    result = env.step(calling(("act", {"command": "look"}), ("act", {"place": 1}), ("act", {"command": "look"})))  # type: ignore[arg-type]
    told = answers(result)
    assert "You can: " in told[0] and "one text, `command`" in told[1] and "episode is over" in told[2]
    assert result["is_terminated"] and result["info"]["stop_reason"] == "max_steps" and not result["info"]["finished"]


@pytest.mark.service
def test_an_episode_without_a_goal_ends_with_done_and_has_no_grade() -> None:
    env = TextworldEnv("treasure_hunter.10.1000", "one", {"is_open_query": True})
    opening = env.get_init_state()["state"][-1]["content"]
    assert opening.startswith("There is no goal.") and "passkey" not in opening
    for command in env.get_info(params={"what": "walkthrough"})[:2]:
        does(env, command)
    result = does(env, "done two rooms")
    assert (result["info"]["finished"], result["info"]["answer"], result["reward"]) == (True, "two rooms", 0.0)
