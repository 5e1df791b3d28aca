"""Episodes in the two shipped worlds: plans solve them, garbage is answered, the same text leads to the same text."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from env_service.base import Message, StepResult
from env_service.environments.gymnasium.env import GymnasiumEnv
from env_service.environments.gymnasium.world import INSTALL_LINE

ROOT = Path(__file__).parents[4]
LAKE, TAXI = "FrozenLake-v1", "Taxi-v4"


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def started(task_id: str, **params: Any) -> GymnasiumEnv:
    env = GymnasiumEnv(task_id, "i", params)
    env.get_init_state(params)
    return env


def follow_plan(env: GymnasiumEnv, length: int | None = None) -> StepResult | None:
    """Walk the shortest way, naming actions in turn by number and by name; stop after `length` of it if given."""
    plan = env._world.plan(env._env)
    assert plan
    answer = None
    for number, action in enumerate(plan[:length]):
        answer = env.step(said(f"action: {action if number % 2 else env._world.action_names[action]}"))
    return answer


SIXTH, EVERY = 6, 1


@pytest.mark.parametrize("world", [LAKE, TAXI])
@pytest.mark.parametrize("stride", [SIXTH, pytest.param(EVERY, marks=pytest.mark.service)])
def test_the_shortest_plan_scores_one_on_the_listed_tasks_and_doing_nothing_zero(world: str, stride: int) -> None:
    ids = [
        task_id
        for split in ("train", "val", "test")
        for task_id in GymnasiumEnv.get_query_list(split, {"worlds": [world]})
    ]
    assert len(ids) > 200
    for task_id in ids[::stride]:
        env = started(task_id)
        assert (env.evaluate(), env.evaluate(params={"sparse": False})) == (0.0, 0.0)
        answer = follow_plan(env)
        assert answer is not None and answer["is_terminated"] and answer["info"]["stop_reason"] == "finished"
        assert (task_id, env.evaluate(), env.evaluate(params={"sparse": False})) == (task_id, 1.0, 1.0)
        env.close()


def test_splits_share_no_start_and_list_none_twice() -> None:
    starts: dict[str, set[str]] = {}
    for split in ("train", "val", "test"):
        ids = GymnasiumEnv.get_query_list(split)
        openings = [GymnasiumEnv(task_id, "i").get_init_state()["state"][1]["content"] for task_id in ids[::SIXTH]]
        assert len(set(openings)) == len(openings) and len(set(ids)) == len(ids)
        starts[split] = set(openings)
    for one, other in itertools.combinations(starts.values(), 2):
        assert not one & other


@pytest.mark.service
def test_the_lists_are_the_same_in_every_process() -> None:
    code = (
        "from env_service.environments.gymnasium.env import GymnasiumEnv; "
        "print(','.join(GymnasiumEnv.get_query_list('val')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip().split(",") == GymnasiumEnv.get_query_list("val")


@pytest.mark.parametrize("world", [LAKE, TAXI])
def test_the_same_messages_lead_to_the_same_answers(world: str) -> None:
    texts = ["action: 1", "2", "hm", "action: 0", "right", "action: 3", "action: 4"]
    runs = []
    for _ in range(2):
        env = GymnasiumEnv(f"{world}:seed=11", "i")
        answers: list[Any] = [env.get_init_state()]
        for text in texts:
            if not answers[-1].get("is_terminated"):
                answers.append(env.step(said(text)))
        runs.append(answers)
    assert runs[0] == runs[1]


def test_garbage_teaches_the_form_costs_a_step_and_leaves_the_world_alone() -> None:
    env = started(f"{TAXI}:seed=1")
    answer = env.step(said("I would rather walk\ud83d."))
    text = answer["state"][0]["content"]
    assert "is not an action" in text and "action: south" in text and "4 pick up" in text
    told = {"steps": 1, "refused": True, "finished": False, "answer": None, "stop_reason": None}
    assert (answer["reward"], answer["info"]) == (0.0, told)
    assert env.get_info()["rewards"] == []


@pytest.mark.parametrize(
    "text",
    [
        "2",
        "right",
        "Action: right",
        "action: 2",
        "action=2",
        "I think so.\n**Action:** `Right`.",
        "2 right",
        "<think>action: 1</think>action: 2",
    ],
)
def test_an_action_is_read_by_number_or_name_with_or_without_a_label(text: str) -> None:
    env = started(f"{LAKE}:seed=0")
    assert not env.step(said(text))["info"]["refused"]
    assert env._env.unwrapped.s == 1


def test_two_actions_in_one_message_are_refused() -> None:
    answer = started(f"{LAKE}:seed=0").step(said("action: right\naction: down"))
    assert "names 2 actions" in answer["state"][0]["content"]


def test_the_steps_are_limited_and_the_limit_is_told() -> None:
    env = GymnasiumEnv(f"{TAXI}:seed=1", "i", {"max_steps": 2})
    assert "You have 2 actions" in env.get_init_state()["state"][0]["content"]
    assert not env.step(said("hm"))["is_terminated"]
    answer = env.step(said("action: north"))
    assert (answer["is_terminated"], answer["info"]["stop_reason"], env.evaluate()) == (True, "max_steps", 0.0)
    with pytest.raises(ValueError, match="over"):
        env.step(said("action: north"))


def test_the_default_limit_leaves_room_for_twice_the_shortest_way() -> None:
    env = started(f"{LAKE}:seed=1")
    plan = env._world.plan(env._env)
    assert plan is not None and env.get_info()["max_steps"] == 2 * len(plan) + 5


@pytest.mark.parametrize("world", [LAKE, TAXI])
def test_the_dense_score_grows_on_the_way_and_stays_below_one_until_the_end(world: str) -> None:
    env = started(f"{world}:seed=2")
    scores = []
    for action in env._world.plan(env._env) or []:
        scores.append(env.evaluate(params={"sparse": False}))
        env.step(said(str(action)))
    assert scores == sorted(set(scores)) and scores[0] >= 0.0 and scores[-1] < 1.0
    assert env.evaluate() == 1.0


def test_a_hole_ends_the_episode_with_nothing() -> None:
    task_id = next(
        t
        for t in GymnasiumEnv.get_query_list("train", {"worlds": [LAKE]})
        if started(t)._env.unwrapped.desc[0][1] == b"H"
    )
    env = started(task_id)
    answer = env.step(said("right"))
    assert "fell into a hole" in answer["state"][0]["content"] and answer["is_terminated"]
    assert (env.evaluate(), env.evaluate(params={"sparse": False})) == (0.0, 0.0)


def test_a_taxi_drawing_shows_what_its_sentence_says() -> None:
    env = started(f"{TAXI}:seed=1")
    text = env._world.observe(env._env, env._observation)
    row, column, _, _ = env._env.unwrapped.decode(env._env.unwrapped.s)
    assert text.splitlines()[row + 1][2 * column + 1] == "T"
    assert f"The taxi T is at row {row}, column {column}" in text
    picked = next(number for number, action in enumerate(env._world.plan(env._env) or []) if action == 4)
    answer = follow_plan(env, picked + 1)
    assert answer is not None and "The passenger is in the taxi." in answer["state"][0]["content"]


def test_an_open_query_sets_no_goal_and_gives_no_grade() -> None:
    params = {"is_open_query": True}
    env = GymnasiumEnv(f"{LAKE}:seed=1", "i", params)
    assert "Reach the goal" not in env.get_init_state(params)["state"][1]["content"]
    follow_plan(env)
    assert env.evaluate() == 0.0


@pytest.mark.parametrize(
    ("task_id", "params", "message"),
    [
        ("FrozenLake-v1", {}, "has not the form"),
        ("FrozenLake-v1:seed=-1", {}, "has not the form"),
        ("FrozenLake-v1:seed=01", {}, "has not the form"),
        ("FrozenLake-v1:seed=99999999999", {}, "has not the form"),
        ("FrozenLake-v1:seed=1;os", {}, "has not the form"),
        ("FrozenLake-v2:seed=1", {}, "did you mean 'FrozenLake-v1'"),
        ("Blackjack-v1:seed=1", {}, "is not a world"),
        ("os.path/Evil-v0:seed=1", {}, "is not a world"),
        ("FrozenLake-v1:seed=1", {"max_steps": 0}, "whole number"),
        ("FrozenLake-v1:seed=1", {"max_steps": "9"}, "whole number"),
        ("FrozenLake-v1:seed=1", {"is_open_query": 1}, "true or false"),
        ("FrozenLake-v1:seed=1", {"render_mode": "human"}, "unknown parameter `render_mode`"),
    ],
)
def test_wrong_ids_and_parameters_are_the_callers_error(task_id: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymnasiumEnv(task_id, "i", params)


def test_other_wrong_requests_are_the_callers_error() -> None:
    env = started(f"{LAKE}:seed=1")
    with pytest.raises(ValueError, match="role `assistant`"):
        env.step({"role": "user", "content": "2"})
    with pytest.raises(ValueError, match="only `sparse`"):
        env.evaluate(params={"dense": True})
    with pytest.raises(ValueError, match="when the instance is created"):
        env.get_init_state({"is_open_query": True})
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        GymnasiumEnv.get_query_list("dev")
    with pytest.raises(ValueError, match="is not a world"):
        GymnasiumEnv.get_query_list("train", {"worlds": ["Blackjack-v1"]})
    with pytest.raises(ValueError, match="give a list"):
        GymnasiumEnv.get_query_list("train", {"worlds": LAKE})
    with pytest.raises(ValueError, match="unknown parameter `seed`"):
        GymnasiumEnv.get_query_list("train", {"seed": 3})


@pytest.mark.service
def test_without_the_package_the_class_imports_and_its_use_names_the_install_line() -> None:
    code = """
import sys
sys.modules["gymnasium"] = None
from env_service.environments.gymnasium.env import GymnasiumEnv
for use in (lambda: GymnasiumEnv.get_query_list("train"), lambda: GymnasiumEnv("Taxi-v4:seed=1", "i")):
    try:
        use()
    except RuntimeError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count(INSTALL_LINE) == 2


LAKE_SEED_0 = f"{LAKE}:seed=0"


def opened(task_id: str, **params: Any) -> GymnasiumEnv:
    env = GymnasiumEnv(task_id, "i", {"is_open_query": True, **params})
    env.get_init_state()
    return env


def test_the_query_is_the_goal_alone_and_the_map_stands_beside_it() -> None:
    for is_open in (False, True):
        env = GymnasiumEnv(LAKE_SEED_0, "i", {"is_open_query": is_open})
        opening = env.get_init_state()
        content, query = opening["state"][-1]["content"], opening["info"]["query"]
        assert (
            content.startswith(query)
            and "\n" not in query
            and "You are A, at row 0, column 0" in content.removeprefix(query)
        )
        assert ("action: done" in opening["state"][0]["content"]) == is_open


@pytest.mark.parametrize(
    ("text", "answer"),
    [("action: done", ""), ("There.\nAction: done 4.", "4"), ("done row 1, column 2", "row 1, column 2")],
)
def test_an_episode_without_a_goal_ends_when_the_agent_says_so(text: str, answer: str) -> None:
    env = opened(LAKE_SEED_0)
    result = env.step(said(text))
    assert result["is_terminated"] and "You are A, at row 0, column 0" in result["state"][0]["content"]
    told = {"refused": False, "finished": True, "answer": answer}
    assert result["info"] == {"steps": 1, "stop_reason": "finished", **told}
    state = env.get_info(params={"what": "state"})
    assert state == {"facts": {"agent": {"row": 0, "column": 0}}, "answer": answer, "finished": True, "exact": True}
    goal = started(LAKE_SEED_0)
    assert goal.step(said(text))["info"]["refused"] and goal.get_info(params={"what": "state"})["finished"] is False


def test_a_fall_into_a_hole_ends_an_episode_and_does_not_finish_it() -> None:
    env = opened(f"{LAKE}:seed=1", max_steps=200)
    ends = {env.step(said(f"action: {name}"))["info"]["finished"] for _, name in zip(range(1), ("left",), strict=False)}
    assert ends == {False}
    rows = [[cell.decode() for cell in row] for row in env._env.unwrapped.desc]
    hole = next((r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "H")
    env._env.unwrapped.s = hole[0] * len(rows) + hole[1] - 1 if hole[1] else (hole[0] - 1) * len(rows)
    result = env.step(said("action: right" if hole[1] else "action: down"))
    assert (
        result["is_terminated"] and result["info"]["finished"] is False and result["info"]["stop_reason"] == "finished"
    )


def test_the_state_of_a_taxi_is_where_it_and_its_passenger_are() -> None:
    one, other = opened(f"{TAXI}:seed=1"), opened(f"{TAXI}:seed=1")
    before = one.get_info(params={"what": "state"})
    assert before == other.get_info(params={"what": "state"}) and set(before["facts"]) == {"taxi", "passenger"}
    one.step(said("action: south"))
    one.step(said("action: north"))
    one.step(said("fly"))
    assert one.get_info(params={"what": "state"})["facts"].keys() == before["facts"].keys()
    with pytest.raises(ValueError, match="world or state"):
        one.get_info(params={"what": "map"})
