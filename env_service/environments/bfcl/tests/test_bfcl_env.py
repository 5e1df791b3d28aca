"""How a conversation goes: turns, held-out functions, errors, limits, open queries, grades and isolation."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from env_service.base import Message
from env_service.environments.bfcl.calls import BfclCall
from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.bfcl.package import load_package
from env_service.environments.bfcl.prompts import COMPLETED
from env_service.environments.bfcl.tests.replay import ANSWER, all_task_ids, as_text, play, reference_turns

BASE = "multi_turn_base_0"
HELD_OUT = "multi_turn_miss_func_0"


def started(task_id: str, **params: Any) -> BfclEnv:
    env = BfclEnv(task_id, "i", params)
    env.get_init_state(params)
    return env


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def offered(message: str) -> list[str]:
    """Return the names in a tools block; fails unless each line is a standard schema."""
    block = message.partition("<tools>\n")[2].partition("\n</tools>")[0]
    schemas = [json.loads(line) for line in block.splitlines()]
    assert all(
        schema["type"] == "function" and schema["function"]["parameters"]["type"] == "object" for schema in schemas
    )
    return [schema["function"]["name"] for schema in schemas]


def test_the_opening_is_the_tool_prompt_and_the_first_request() -> None:
    opening = BfclEnv(BASE, "i").get_init_state()
    system, user = opening["state"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert {"cd", "mv", "post_tweet"} <= set(offered(system["content"]))
    assert "<tool_call>" in system["content"]
    assert user["content"] == load_package().tasks[BASE].questions[0]
    assert opening["info"]["category"] == "multi_turn_base"
    assert opening["info"]["turns"] == 4


def test_results_come_back_in_response_tags_one_each_in_order() -> None:
    answer = started(BASE).step(
        as_text([BfclCall("pwd", {}), BfclCall("cd", {"folder": "document"}), BfclCall("pwd", {})])
    )
    (message,) = answer["state"]
    assert message["role"] == "user"
    results = [part.partition("\n</tool_response>")[0] for part in message["content"].split("<tool_response>\n")[1:]]
    assert [json.loads(result) for result in results] == [
        {"current_working_directory": "/workspace"},
        {"current_working_directory": "document"},
        {"current_working_directory": "/workspace/document"},
    ]
    assert message["content"].startswith("<tool_response>") and message["content"].endswith("</tool_response>")
    assert answer["info"]["calls"] == 3


def test_an_answer_without_a_call_brings_the_next_request_and_at_last_the_marker() -> None:
    env, task = started(BASE), load_package().tasks[BASE]
    for question in task.questions[1:]:
        answer = env.step(ANSWER)
        assert (answer["state"][0]["content"], answer["is_terminated"]) == (question, False)
    answer = env.step(ANSWER)
    assert (answer["state"], answer["is_terminated"]) == ([{"role": "user", "content": COMPLETED}], True)
    assert (answer["reward"], answer["info"]["stop_reason"]) == (0.0, "finished")
    with pytest.raises(ValueError, match="over"):
        env.step(ANSWER)


def test_a_held_out_function_is_shown_when_its_turn_comes_and_not_before() -> None:
    task = load_package().tasks[HELD_OUT]
    ((turn, docs),) = task.held_out.items()
    name = docs[0]["name"]
    env = BfclEnv(HELD_OUT, "i")
    assert name not in offered(env.get_init_state()["state"][0]["content"])
    for index in range(1, turn + 1):
        observation = env.step(ANSWER)["state"][0]["content"]
        assert ("<tools>" in observation) == (index == turn)
    assert offered(observation) == [name]
    assert "updated some more functions" in observation
    assert name in {tool["function"]["name"] for tool in env.get_info()["tools"]}


def test_every_held_out_turn_shows_functions_and_every_other_turn_words() -> None:
    for task in load_package().tasks.values():
        assert {turn for turn, question in enumerate(task.questions) if question is None} == set(task.held_out)
        assert all(docs for docs in task.held_out.values())
        assert len(task.truth) == len(task.questions)


def test_a_malformed_call_teaches_and_changes_nothing() -> None:
    env = started(BASE)
    before = env.snapshot()
    answer = env.step(said("<tool_call>cd(folder='document')</tool_call>"))
    text = answer["state"][0]["content"]
    assert "Malformed tool call" in text and '"arguments"' in text and text.startswith("<tool_response>")
    assert (answer["info"]["malformed_calls"], answer["info"]["calls"], answer["info"]["turn"]) == (1, 0, 0)
    assert env.snapshot() == before


def test_a_malformed_call_does_not_spoil_a_solution() -> None:
    turns = reference_turns("multi_turn_miss_param_0")
    env = started("multi_turn_miss_param_0")
    for calls in turns:
        env.step(said("<tool_call>oops</tool_call>"))
        if calls:
            env.step(as_text(calls))
        env.step(ANSWER)
    assert env.evaluate() == 1.0


def test_more_steps_than_allowed_in_one_turn_end_the_episode_unsolved() -> None:
    env = started(BASE)
    for _ in range(20):
        assert not env.step(as_text([BfclCall("pwd", {})]))["is_terminated"]
    answer = env.step(said("<tool_call>x</tool_call>"))
    assert (answer["is_terminated"], answer["info"]["stop_reason"], env.evaluate()) == (True, "max_steps_per_turn", 0.0)
    assert answer["state"][0]["content"].startswith("<tool_response>")


def test_an_unfinished_episode_scores_zero_and_its_finished_turns_count_in_the_dense_score() -> None:
    env, turns = started(BASE), reference_turns(BASE)
    env.step(as_text(turns[0]))
    env.step(ANSWER)
    assert (env.evaluate(), env.evaluate(params={"sparse": False})) == (0.0, 0.25)


def test_silence_earns_nothing_even_where_silence_is_right_and_counts_beside_a_turn_that_acted() -> None:
    turns = reference_turns(HELD_OUT)
    silent, _ = play([[] for _ in turns], HELD_OUT)
    first = next(index for index, calls in enumerate(turns) if calls)
    acted, _ = play([calls if index == first else [] for index, calls in enumerate(turns)], HELD_OUT)
    assert silent.evaluate(params={"sparse": False}) == 0.0
    assert acted.evaluate(params={"sparse": False}) >= 2 / len(turns)


def test_an_open_query_offers_every_function_and_ends_with_the_first_answer() -> None:
    env = BfclEnv(HELD_OUT, "i", {"is_open_query": True})
    system, user = env.get_init_state({"is_open_query": True})["state"]
    task = load_package().tasks[HELD_OUT]
    assert {doc["name"] for docs in task.held_out.values() for doc in docs} <= set(offered(system["content"]))
    assert user["content"] != task.questions[0] and user["role"] == "user"
    assert not env.step(as_text([BfclCall("pwd", {})]))["is_terminated"]
    answer = env.step(ANSWER)
    assert (answer["is_terminated"], answer["state"][0]["content"], answer["reward"]) == (True, COMPLETED, 0.0)
    assert env.evaluate() == 0.0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"is_open_quary": True}, "did you mean `is_open_query`"),
        ({"bfcl_root": "/tmp"}, "unknown parameter `bfcl_root`"),
        ({"is_open_query": "yes"}, "must be true or false"),
        ({"max_steps_per_turn": 0}, "whole number"),
        ({"max_steps_per_turn": True}, "whole number"),
        ({"max_steps_per_turn": 10**9}, "whole number"),
    ],
)
def test_wrong_parameters_are_the_callers_error(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BfclEnv(BASE, "i", params)


def test_other_wrong_requests_are_the_callers_error() -> None:
    env = started(BASE)
    for task_id in ("multi_turn_base_200", "base_0", "../multi_turn_base_0", ""):
        with pytest.raises(ValueError, match="no BFCL multi-turn task"):
            BfclEnv(task_id, "i")
    with pytest.raises(ValueError, match="did you mean `sparse`"):
        env.evaluate(params={"spars": True})
    with pytest.raises(ValueError, match="it can be"):
        env.get_info(params={"what": "truth"})
    with pytest.raises(ValueError, match="action"):
        env.step({"role": "user", "content": "hello"})
    with pytest.raises(ValueError, match="when the instance is created"):
        env.get_init_state({"is_open_query": True})


def test_model_text_is_never_evaluated() -> None:
    env = started(BASE)
    for name in (
        "__import__",
        "eval",
        "print",
        "_load_scenario",
        "__init__",
        "instances",
        "GorillaFileSystem",
        "os.system",
        "pwd()",
    ):
        text = env.step(as_text([BfclCall(name, {})]))["state"][0]["content"]
        assert f"Error during execution: name '{name}' is not defined" in text
    content = "str(__import__('os').getpid())"
    env.step(as_text([BfclCall("touch", {"file_name": "a"}), BfclCall("echo", {"content": content, "file_name": "a"})]))
    assert env.snapshot()["GorillaFileSystem"]["root"]["contents"]["a"] == {"type": "file", "content": content}


def test_two_episodes_of_one_task_in_one_process_do_not_see_each_other() -> None:
    one, other = started(BASE), started(BASE)
    one.step(as_text([BfclCall("mkdir", {"dir_name": "mine"})]))
    assert "mine" not in other.step(as_text([BfclCall("ls", {})]))["state"][0]["content"]
    assert started(BASE).snapshot() == other.snapshot() != one.snapshot()


def test_a_long_variant_does_not_hand_out_the_packages_own_tables() -> None:
    task_id = next(
        t.task_id for t in load_package().tasks.values() if t.long_context and "TravelAPI" in t.involved_classes
    )
    one, other = started(task_id), started(task_id)
    card = next(iter(one._agent.instances["TravelAPI"].credit_card_list))
    cards = [env._agent.instances["TravelAPI"].credit_card_list for env in (one, other)]
    for name in cards[0]:
        cards[0][name]["balance"] = -1
        assert cards[1][name]["balance"] != -1
    assert started(task_id)._agent.instances["TravelAPI"].credit_card_list[card]["balance"] != -1


def test_episodes_in_many_threads_give_the_results_of_one() -> None:
    ids = [task_id for task_id in all_task_ids() if task_id.endswith(("_32", "_59", "_100", "_150"))]
    expected = {task_id: play(reference_turns(task_id), task_id)[0]._results for task_id in ids}
    wrong: list[str] = []

    def work() -> None:
        for task_id in ids:
            env, _ = play(reference_turns(task_id), task_id)
            if env._results != expected[task_id] or env.evaluate() != 1.0:
                wrong.append(task_id)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_snapshots_are_json_and_equal_for_the_same_calls() -> None:
    for task_id in all_task_ids()[::9]:
        turns = reference_turns(task_id)
        (one, _), (other, _) = (
            play(turns, task_id, one_call_per_message=False),
            play(turns, task_id, one_call_per_message=False),
        )
        assert (
            json.loads(json.dumps(one.snapshot(), allow_nan=False))
            == one.snapshot()
            == other.get_info(params={"what": "state"})["facts"]
        )
        assert set(one.snapshot()) == set(load_package().tasks[task_id].involved_classes)


def test_the_report_tells_which_turn_failed_and_how() -> None:
    turns = reference_turns(BASE)
    turns[1] = []
    env, _ = play(turns, BASE)
    report = env.get_info(params={"what": "report"})
    assert [verdict["error_type"] for verdict in report["verdicts"]][:2] == [
        None,
        "multi_turn:empty_turn_model_response",
    ]
    assert (report["solved"], report["category"], report["stop_reason"]) == (False, "multi_turn_base", "finished")
    json.dumps(report)
