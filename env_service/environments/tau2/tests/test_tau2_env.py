"""Episodes of tau2: what is answered, what ends them, what they cost, and what one does not do to another."""

from __future__ import annotations

import random
from typing import Any

import pytest
from calling import calling

from env_service.contract import checked_init_state, checked_step, checked_tools
from env_service.environments.tau2.calls import too_hard
from env_service.environments.tau2.database import plain
from env_service.environments.tau2.env import Tau2Env
from env_service.environments.tau2.package import DOMAINS, Tau2NotInstalled, domain, module

NATIVE = {"native_tools": True}
TELECOM = "telecom.[mobile_data_issue]airplane_mode_on|data_mode_off[PERSONA:None]"


def begun(task_id: str, **params: Any) -> Tau2Env:
    env = Tau2Env(task_id, "one", {**NATIVE, **params})
    checked_init_state(env.get_init_state())
    return env


def called(*calls: tuple[str, Any]) -> Any:
    return calling(*calls)


def said(text: str) -> Any:
    return {"role": "assistant", "content": text}


def test_what_cannot_be_imported_names_the_remedy_without_the_package() -> None:
    with pytest.raises(Tau2NotInstalled, match=r"tau2/setup\.sh"):
        module("no_such_module_of_it")


@pytest.mark.parametrize(("split", "count"), [("train", 178), ("test", 100), ("base", 278), ("full", 2449)])
def test_the_splits_are_the_benchmarks(split: str, count: int) -> None:
    ids = Tau2Env.get_query_list(split)
    assert len(ids) == len(set(ids)) == count
    assert {task.partition(".")[0] for task in ids} == set(DOMAINS)
    narrowed = Tau2Env.get_query_list(split, {"domains": ["retail"]})
    assert narrowed == [task for task in ids if task.startswith("retail.")]


@pytest.mark.parametrize("params", [{"domains": []}, {"domains": ["banking"]}, {"domains": "retail"}, {"domain": 1}])
def test_a_list_of_tasks_that_cannot_be_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="domains"):
        Tau2Env.get_query_list("train", params)


@pytest.mark.parametrize(
    ("task_id", "params", "match"),
    [
        ("airline.999", {}, "no task"),
        ("airline", {}, "reads like"),
        ("airline.0", {"user": "solo"}, "ticket"),
        ("airline.0", {"user": "nobody"}, "scripted, llm, solo"),
        ("airline.0", {"usr": "llm"}, "did you mean 'user'"),
        ("airline.0", {"max_steps": 0}, "max_steps must be 1"),
        ("airline.0", {"max_errors": True}, "of type int"),
    ],
)
def test_a_wrong_create_is_refused(task_id: str, params: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Tau2Env(task_id, "one", params)


def test_an_instance_changes_neither_the_shared_database_nor_another_instance() -> None:
    shared = domain("retail").database
    before = plain(shared.users["yusuf_rossi_9620"])
    one, other = begun("retail.0"), begun("retail.0")
    address = dict.fromkeys(("address1", "address2", "city", "state", "country"), "nowhere") | {"zip": "00000"}
    answer = one.step(called(("modify_user_address", {"user_id": "yusuf_rossi_9620", **address})))
    assert answer["info"]["refused"] is False and "nowhere" in answer["state"][0]["content"]
    assert list(one.get_info(params={"what": "state"})["facts"]["assistant"]["users"]) == ["yusuf_rossi_9620"]
    seen = other.step(called(("get_user_details", {"user_id": "yusuf_rossi_9620"})))
    assert "nowhere" not in seen["state"][0]["content"]
    assert other.get_info(params={"what": "state"})["facts"] == {}
    assert plain(shared.users["yusuf_rossi_9620"]) == before


def test_two_hundred_bad_calls_are_observations() -> None:
    rng = random.Random(7)
    odd: list[Any] = ["", "x", "#W0", -1, 10**30, 1.5, True, None, [], [1], {}, {"a": {"b": []}}, "ä\n", "9**9**9**9"]
    for name in DOMAINS:
        tools = [tool["function"] for tool in domain(name).schemas]
        env = begun(Tau2Env.get_query_list("base", {"domains": [name]})[3], max_errors=0, max_steps=1000)
        for _ in range(67):
            tool = rng.choice(tools)
            keys = [*tool["parameters"]["properties"], "tool_name", "requestor", "self", "no_such"]
            arguments = {key: rng.choice(odd) for key in rng.sample(keys, rng.randrange(len(keys) + 1))}
            chosen = rng.choice([tool["name"], tool["name"], tool["name"], "db", "_get_user", "__init__", "update_db"])
            (answer,) = checked_step(env.step(called((chosen, arguments))))["state"]
            assert (answer["role"], answer["name"]) == ("tool", chosen)


def test_a_call_that_cannot_be_read_is_answered_in_its_place_and_counts_as_an_error() -> None:
    env = begun("airline.0")
    broken = called(("get_user_details", {"user_id": "emma_kim_9957"}), ("calculate", {}))
    broken["tool_calls"][1]["function"]["arguments"] = '{"expression": '
    result = env.step(broken)
    assert [message["role"] for message in result["state"]] == ["tool", "tool"]
    assert "emma.kim" in result["state"][0]["content"] and "no valid JSON" in result["state"][1]["content"]
    assert result["info"]["errors"] == 1 and "no valid JSON" in result["info"]["refused"]


def test_calls_written_as_text_do_the_same() -> None:
    env = Tau2Env("airline.0", "one")
    opening = env.get_init_state()["state"]
    assert '"get_user_details"' in opening[0]["content"] and "<tool_call>" in opening[0]["content"]
    result = env.step(
        said('<tool_call>{"name": "get_user_details", "arguments": {"user_id": "emma_kim_9957"}}</tool_call>')
    )
    assert result["state"][0]["role"] == "user" and "<tool_response>" in result["state"][0]["content"]
    assert "emma.kim" in result["state"][0]["content"]


def test_ten_failing_calls_or_the_last_step_break_the_episode_off_and_it_is_worth_nothing() -> None:
    env = begun("airline.0")  # a task that is right when nothing is done
    for _ in range(10):
        result = env.step(called(("no_such_tool", {})))
    assert result["is_terminated"] and result["reward"] == env.evaluate() == 0.0
    assert result["info"]["stop_reason"] == "max_errors" and not result["info"]["finished"]
    with pytest.raises(ValueError, match="over"):
        env.step(said("hello"))
    env = begun("airline.0", max_steps=1)
    assert env.step(said("Hello?"))["info"]["stop_reason"] == "max_steps"
    assert env.evaluate(params={"sparse": False}) == 1.0


def test_an_agent_alone_has_the_phone_and_ends_with_done() -> None:
    env = begun(TELECOM, user="solo")
    names = {tool["function"]["name"] for tool in checked_tools(env.tools())}
    assert {"toggle_airplane_mode", "get_customer_by_phone", "done"} <= names
    env.step(called(("toggle_airplane_mode", {})))
    assert env.evaluate(params={"sparse": False}) < 1.0
    env.step(called(("toggle_data", {})))
    result = env.step(called(("done", {})))
    assert (result["reward"], result["is_terminated"], result["info"]["finished"]) == (1.0, True, True)
    result = begun(TELECOM, user="solo").step(said("I have solved it."))
    assert (result["info"]["stop_reason"], result["reward"]) == ("agent_error", 0.0)


def test_an_episode_without_a_task_ends_with_a_message_and_has_no_grade() -> None:
    env = begun("retail.0", is_open_query=True, max_errors=1)
    assert not env.step(called(("no_such_tool", {})))["is_terminated"]
    result = env.step(said("Enough seen."))
    assert (result["is_terminated"], result["info"]["answer"], result["reward"]) == (True, "Enough seen.", 0.0)


@pytest.mark.parametrize("expression", ["9**9**9", "(2**99)**99", "2**9999", "2**(9*9*9*9)", "1+" * 600 + "1"])
def test_arithmetic_that_would_never_end_is_refused(expression: str) -> None:
    assert too_hard("calculate", {"expression": expression})
    result = begun("airline.0").step(called(("calculate", {"expression": expression})))
    assert result["state"][0]["content"].startswith("Error: ")


@pytest.mark.parametrize(("expression", "value"), [("2 + 2 * 3", "8.0"), ("2**10 - 1", "1023.0"), ("1.5**2*4", "9.0")])
def test_arithmetic_as_people_write_it_is_computed(expression: str, value: str) -> None:
    assert begun("airline.0").step(called(("calculate", {"expression": expression})))["state"][0]["content"] == value
