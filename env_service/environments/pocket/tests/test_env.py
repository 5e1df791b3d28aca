"""The environment contract: opening messages, budget, open episodes, parameters, information."""

import pytest

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tasks import make_task
from env_service.environments.pocket.tests.replays import reference
from env_service.environments.pocket.tools import TOOLS


def act(env, text):
    return env.step({"role": "assistant", "content": text})


def test_it_opens_with_a_short_system_message_and_the_task_alone():
    state = PocketEnv("pay.k3.1", "i").get_init_state()["state"]
    assert state == [{"role": "system", "content": "site k3"}, {"role": "user", "content": make_task("pay.k3.1").query}]


@pytest.mark.parametrize(("syntax", "call"), [("compact", "note.del ID"), ("json", "note.del id")])
def test_verbose_opens_with_every_tool_in_the_asked_syntax_and_still_the_task_alone(syntax, call):
    state = PocketEnv("pay.k3.1", "i", {"syntax": syntax, "verbose": True}).get_init_state()["state"]
    assert len(state) == 2 and state[1]["content"] == make_task("pay.k3.1").query
    assert call in state[0]["content"] and "site k3" in state[0]["content"]
    assert all(tool in state[0]["content"] for tool in TOOLS)


def test_an_episode_ends_with_done_and_says_why():
    env = PocketEnv("pay.k3.1", "i")
    result = act(env, "done")
    assert result["is_terminated"] and result["info"]["stop_reason"] == "finished"
    with pytest.raises(ValueError, match="is over"):
        act(env, "done")


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_an_episode_ends_when_the_budget_is_spent(slack):
    env = PocketEnv("pay.k3.1", "i", {"slack": slack})
    budget = len(reference("pay.k3.1")) + slack
    results = [act(env, "cal.find bob") for _ in range(budget)]
    assert [r["is_terminated"] for r in results] == [False] * (budget - 1) + [True]
    told = {
        "steps": budget,
        "errors": 0,
        "refused": False,
        "finished": False,
        "answer": None,
        "stop_reason": "max_steps",
    }
    assert results[-1]["info"] == told
    assert results[-1]["reward"] == 0.0


@pytest.mark.parametrize("task_id", ["open.k5.12", "note_del.k5.12"])
def test_it_can_be_explored_without_a_task(task_id):
    env = PocketEnv(task_id, "i", {"is_open_query": True, "explore_steps": 3})
    opening = env.get_init_state()
    assert len(opening["state"]) == 2 and opening["state"][1]["content"] == "explore"
    assert opening["info"]["is_open_query"] and opening["info"]["query"] == "explore"
    assert [act(env, "note.add milk home")["is_terminated"] for _ in range(3)] == [False, False, True]
    assert env.evaluate() == env.evaluate(params={"sparse": False}) == 0.0


def test_an_open_id_needs_no_parameter_and_a_task_can_be_explored_from_its_own_start_state():
    assert PocketEnv("open.k5.12", "i").get_init_state()["info"]["is_open_query"]
    explored, tasked = PocketEnv("pay.k5.12", "i", {"is_open_query": True}), PocketEnv("pay.k5.12", "i")
    assert explored.world.tables.facts() == tasked.world.tables.facts()
    assert explored.get_init_state({"is_open_query": False})["state"][1]["content"] == make_task("pay.k5.12").query


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"slak": 1}, "slack"),
        ({"slack": -1}, "slack"),
        ({"slack": "1"}, "int"),
        ({"syntax": "xml"}, "compact"),
        ({"explore_steps": 0}, "explore_steps"),
        ({"latency": {"share": 2}}, "latency"),
        ({"latency": {"share": 0.1, "seconds": 10.0}}, "seconds: 0 to below 10"),
        ({"latency": {"shares": 0.1}}, "latency"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(params, word):
    with pytest.raises(ValueError, match=word):
        PocketEnv("pay.k3.1", "i", params)


def test_so_many_episodes_take_their_time_for_each_call_and_the_others_none(monkeypatch):
    slept = []
    monkeypatch.setattr("env_service.environments.pocket.env.time.sleep", slept.append)
    slow = 0
    for number in range(200):
        env = PocketEnv("pay.k3.1", f"i{number}", {"latency": {"share": 0.2, "seconds": 1.5}})
        for _ in range(2):
            act(env, "done" if env.steps else "note.find x")
        assert len(slept) == 2 and len(set(slept)) == 1, "an episode is slow or it is not"
        slow += slept[0] == 1.5
        slept.clear()
    assert 20 <= slow <= 60
    assert PocketEnv("pay.k3.1", "i3", {"latency": {"share": 0.2, "seconds": 1.5}})._latency_s == (
        PocketEnv("pay.k4.1", "i3", {"latency": {"share": 0.2, "seconds": 1.5}})._latency_s
    ), "by the instance's id"


def test_information_lists_every_tool_as_a_schema():
    tools = PocketEnv("pay.k3.1", "i").get_info()["tools"]
    assert {t["function"]["name"] for t in tools} == set(TOOLS)
    pay = next(t["function"] for t in tools if t["function"]["name"] == "bank.pay")
    assert pay["parameters"]["required"] == ["name", "amount"]
