"""PocketWorld with native tools: every reference solution as calls, nothing said of syntax, names without dots."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from calling import answers, calling
from hypothesis import given, settings
from hypothesis import strategies as st

from env_service.checker import LocalProbe
from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.long_env import PocketLongEnv, make_chain
from env_service.environments.pocket.quirks import quirks_of, signature
from env_service.environments.pocket.tasks import make_task
from env_service.environments.pocket.tools import TOOLS

NATIVE = {"native_tools": True}


def native(call: PocketCall, site: int) -> tuple[str, dict[str, str]]:
    keys = [param.key for param in signature(call.tool, quirks_of(site))]
    return call.tool.replace(".", "_"), dict(zip(keys, call.args, strict=False))


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "all at once"])
def test_every_reference_solution_solves_its_task_as_native_calls(together: bool) -> None:
    for task_id in PocketEnv.get_query_list("train", {"n": 48}) + PocketEnv.get_query_list("hard", {"n": 48}):
        env = PocketEnv(task_id, "i", {**NATIVE, "slack": 0})
        task = make_task(task_id)
        calls = [native(call, task.site) for call in task.solution]
        result = None
        for group in [calls] if together else [[call] for call in calls]:
            result = env.step(calling(*group))
            assert not any(text.startswith("err") for text in answers(result)), (task_id, group, result)
        assert result is not None and (result["reward"], result["info"]["finished"]) == (1.0, True), task_id


def test_a_long_chain_is_solved_by_native_calls() -> None:
    (task_id,) = PocketLongEnv.get_query_list("dev", {"n": 1})
    env, chain = PocketLongEnv(task_id, "i", {**NATIVE, "slack": 0}), make_chain(task_id)
    for number, goal in enumerate(chain.goals):
        texts = answers(env.step(calling(*(native(call, chain.site) for call in goal.solution))))
        if number + 1 < len(chain.goals):
            assert texts[-1] == chain.goals[number + 1].query
    assert env.evaluate() == 1.0 and env.is_over


def test_the_opening_lists_no_tools_and_keeps_what_is_true_of_the_site() -> None:
    for env_class, task_id in ((PocketEnv, "note_del.k0.1"), (PocketLongEnv, "long.k3.17")):
        _, opened = LocalProbe(env_class).create(task_id, {**NATIVE, "verbose": True})
        system = opened["state"][0]["content"]
        assert "Sites differ" in system and "call done" in system
        assert not re.search("tool_call|TOOL|note\\.|Tools", system)
        names = [tool["function"]["name"] for tool in opened["info"]["tools"]]
        assert len(names) == len(TOOLS) and {"note_find", "bank_pay", "doc", "done"} <= set(names)
        assert not re.search(r"\b(note|cal|mail|bank|shop|me)\.\w", json.dumps(opened["info"]["tools"]))
    short = PocketEnv("note_del.k0.1", "i", NATIVE).get_init_state()["state"]
    assert short == PocketEnv("note_del.k0.1", "i").get_init_state()["state"]


def test_one_name_for_a_tool_in_all_that_the_agent_reads() -> None:
    env = PocketEnv("note_del.k0.1", "i", {**NATIVE, "slack": 20})
    texts = answers(env.step(calling(("doc", {"tool": "note_tag"}), ("doc", {"tool": "note"}), ("bank_pay", {}))))
    assert texts[0].startswith('use note_tag {"id": ID, "tag": TAG')
    assert texts[1] == "tools note_find note_list note_add note_tag note_del"
    assert texts[2].startswith("err ") and "." not in "".join(texts)


@pytest.mark.parametrize("text", ["note.find milk", '<tool_call>{"name": "me.pin", "arguments": {}}</tool_call>', ""])
def test_a_reply_without_calls_is_an_error_that_costs_a_step_and_text_is_no_call(text: str) -> None:
    env = PocketEnv("note_del.k0.1", "i", NATIVE)
    result = env.step({"role": "assistant", "content": text})
    assert result["state"] == [{"role": "user", "content": "err no call , call a tool"}]
    assert (result["info"]["steps"], result["info"]["errors"], result["info"]["refused"]) == (1, 1, True)


def test_each_call_is_a_step_and_those_after_the_end_are_not_carried_out() -> None:
    env = PocketEnv("note_del.k0.1", "i", {**NATIVE, "slack": 0})
    result = env.step(calling(*[("me_pin", {})] * (env.max_steps + 2)))
    texts = answers(result)
    assert texts[-2:] == ["err not carried out , the episode is over"] * 2 and texts[-3].startswith("pin")
    assert (result["info"]["steps"], result["info"]["stop_reason"]) == (env.max_steps, "max_steps")
    ended = PocketEnv("note_del.k0.1", "i", NATIVE)
    texts = answers(ended.step(calling(("done", {"answer": "New York"}), ("me_pin", {}))))
    assert texts == ["bye", "err not carried out , the episode is over"] and ended.world.answer == "New York"


def test_where_the_order_of_arguments_is_a_sites_own_the_order_of_the_keys_counts() -> None:
    site = next(
        number for number in range(16) if quirks_of(number).pay == "amount" and quirks_of(number).login == "open"
    )
    env = PocketEnv(f"note_del.k{site}.1", "i", {**NATIVE, "slack": 9})
    wrong, right = answers(
        env.step(calling(("bank_pay", {"name": "bob", "amount": 3}), ("bank_pay", {"amount": 3, "name": "bob"})))
    )
    assert (wrong, right) == ('err use bank_pay {"amount": AMOUNT, "name": NAME}', "ok")


names = st.sampled_from([name.replace(".", "_") for name in TOOLS]) | st.text(max_size=8)
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
arguments = st.text(max_size=12) | st.dictionaries(st.sampled_from(["id", "tag", "word", "x"]), values).map(json.dumps)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.tuples(names, arguments), max_size=4), max_size=4))
def test_whatever_is_called_is_answered_call_by_call(messages: list[list[tuple[str, Any]]]) -> None:
    probe = LocalProbe(PocketEnv)
    name, _ = probe.create("note_del.k0.1", {**NATIVE, "slack": 30})
    for calls in messages:
        result = probe.step(name, calling(*calls))
        if calls:
            assert len(answers(result)) == len(calls)
        assert result["info"]["refused"] == any(m["content"].startswith("err") for m in result["state"])
        if result["is_terminated"]:
            return
