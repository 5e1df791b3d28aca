"""ScienceWorld: the simulator's gold paths solve their tasks, sub-goals are worth their share, games do not see one
another, and no Java process outlives its host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from calling import answers, calling

from env_service.contract import checked_init_state, checked_step
from env_service.environments.scienceworld import simulator
from env_service.environments.scienceworld.env import ScienceworldEnv, read_id
from env_service.environments.scienceworld.simulator import ScienceworldNotInstalled, Simulator, splits

SHORT = ["find-animal.0", "lifespan-longest-lived.0", "find-plant.151"]


def begun(task_id: str, **params: Any) -> ScienceworldEnv:
    env = ScienceworldEnv(task_id, "one", params)
    checked_init_state(env.get_init_state())
    return env


def does(env: ScienceworldEnv, command: str) -> Any:
    return checked_step(env.step({"role": "assistant", "content": f"I will.\naction: {command}"}))


def replayed(task_id: str) -> tuple[Any, list[float]]:
    """Carry the gold path out; returns the last result, and what the episode was worth before and after each step."""
    env = begun(task_id, max_steps=1000)
    worth, result = [env.evaluate(params={"sparse": False})], None
    for command in env.get_info(params={"what": "walkthrough"}):
        result = does(env, command)
        worth.append(env.evaluate(params={"sparse": False}))
        if result["is_terminated"]:
            break
    env.close()
    return result, worth


def test_thirty_tasks_part_their_variations_without_the_package() -> None:
    assert len(splits()) == 30 and sum(ends[2] for ends in splits().values()) == 7207
    assert all(0 < ends[0] < ends[1] < ends[2] for ends in splits().values())
    every = [ScienceworldEnv.get_query_list(split, {"variations": 0}) for split in ("train", "dev", "test")]
    assert len({name for names in every for name in names}) == sum(map(len, every)) == 7207
    assert len(ScienceworldEnv.get_query_list()) == sum(min(10, ends[0]) for ends in splits().values())
    assert ScienceworldEnv.get_query_list("dev", {"tasks": ["boil"], "variations": 2}) == ["boil.14", "boil.15"]


@pytest.mark.parametrize("task_id", ["", "boil", "boil.30", "boil.01", "boil.-1", "cook.1", "a/b.1"])
def test_a_task_that_is_none_is_refused_without_the_package(task_id: str) -> None:
    with pytest.raises(ValueError, match="no ScienceWorld task"):
        read_id(task_id)


@pytest.mark.parametrize(
    ("split", "params", "match"),
    [
        ("val2", {}, "train, dev, test"),
        ("train", {"task": 1}, "known: tasks"),
        ("train", {"tasks": ["cook"]}, "list with some of"),
        ("train", {"variations": -1}, "0 or more"),
    ],
)
def test_a_list_that_cannot_be_is_refused_without_the_package(split: str, params: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ScienceworldEnv.get_query_list(split, params)


@pytest.mark.parametrize(
    ("params", "match"),
    [({"max_steps": 0}, "1 to 1000"), ({"simplifications": "fast"}, "must be one of"), ({"steps": 1}, "unknown")],
)
def test_parameters_that_cannot_be_are_refused_without_the_package(params: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ScienceworldEnv("boil.0", "one", params)


def test_without_java_the_remedy_is_named_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator.shutil, "which", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(ScienceworldNotInstalled, match="default-jre-headless"):
        Simulator()


@pytest.mark.service
@pytest.mark.parametrize("task_id", SHORT)
def test_the_gold_path_solves_its_task_and_no_step_of_it_loses_worth(task_id: str) -> None:
    result, worth = replayed(task_id)
    assert (result["reward"], result["info"]["finished"], result["info"]["score"]) == (1.0, True, 1.0)
    assert worth[0] == 0.0 and worth[-1] == 1.0 and worth == sorted(worth) and len(set(worth)) > 2


@pytest.mark.e2e
@pytest.mark.chaos
@pytest.mark.parametrize("task", splits())
def test_the_gold_path_of_every_task_solves_it(task: str) -> None:
    for split in ("train", "test"):
        (name,) = ScienceworldEnv.get_query_list(split, {"tasks": [task], "variations": 1})
        result, worth = replayed(name)
        assert (result["reward"], result["info"]["finished"]) == (1.0, True), (name, result["info"])
        assert worth == sorted(worth)


@pytest.mark.service
def test_a_wrong_focus_fails_the_task_for_good() -> None:
    env = begun("find-animal.0")
    result = does(env, "focus on picture")
    assert result["info"]["stop_reason"] == "failed" and not result["info"]["finished"]
    assert (result["reward"], env.evaluate(params={"sparse": False})) == (0.0, 0.0)
    with pytest.raises(ValueError, match="over"):
        does(env, "look around")
    env.close()


@pytest.mark.service
def test_games_of_one_java_process_do_not_see_one_another() -> None:
    one, other = begun("boil.0"), begun("boil.0")
    before = other.get_info(params={"what": "state"})
    does(one, "open door to kitchen")
    does(one, "go to kitchen")
    assert other.get_info(params={"what": "state"}) == before != one.get_info(params={"what": "state"})
    held = Simulator.shared()._games
    one.close()
    one.close()
    assert Simulator.shared()._games == held - 1
    assert does(other, "look around")["info"]["refused"] is False
    other.close()


@pytest.mark.service
def test_what_is_no_command_is_answered_and_a_task_cannot_be_reset() -> None:
    env = begun("boil.0", max_steps=7, admissible=True)
    for command, refused in (
        ("reset task", True),
        ("ä", True),
        ("x" * 300, True),
        ("foo bar", True),
        ("inventory", False),
    ):
        assert bool(does(env, command)["info"]["refused"]) is refused, command
    assert "You can: " in does(env, "look around")["state"][0]["content"]
    result = env.step({"role": "assistant", "content": "hm"})
    assert result["state"][0]["content"].startswith("This reply holds no command")
    assert result["info"]["stop_reason"] == "max_steps"
    env.close()


@pytest.mark.service
def test_native_calls_are_answered_each_and_an_open_query_ends_with_done() -> None:
    env = begun("boil.0", native_tools=True, is_open_query=True)
    assert "boil" not in env.get_init_state()["state"][-1]["content"]
    told = answers(env.step(calling(("act", {"command": "look around"}), ("act", {"place": 1}))))
    assert "hallway" in told[0] and "one text, `command`" in told[1]
    result = env.step(calling(("done", {"answer": "a hallway"})))
    assert (result["info"]["finished"], result["info"]["answer"], result["reward"]) == (True, "a hallway", 0.0)
    env.close()


@pytest.mark.service
def test_a_full_java_process_refuses_and_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    env = begun("boil.0")
    monkeypatch.setattr(Simulator.shared(), "most", Simulator.shared()._games)
    with pytest.raises(RuntimeError, match="SCIENCEWORLD_HEAP_MB"):
        ScienceworldEnv("boil.1", "two")
    Simulator.shared().process.kill()
    Simulator.shared().process.wait(10)
    with pytest.raises(RuntimeError, match="has ended"):
        does(env, "look around")
    env.close()
    again = begun("boil.1")
    again.close()


HOST = """
import sys, time
from env_service.environments.scienceworld.env import ScienceworldEnv
from env_service.environments.scienceworld.simulator import Simulator
env = ScienceworldEnv("find-plant.0", "one")
print(Simulator.shared().process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.service
def test_no_java_process_outlives_a_host_that_is_killed() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True, env=environ) as host:
        assert host.stdout is not None
        java = psutil.Process(int(host.stdout.readline()))
        assert "java" in java.name()
        host.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while java.is_running() and java.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not java.is_running() or java.status() == psutil.STATUS_ZOMBIE
