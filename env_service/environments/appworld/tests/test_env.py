"""How an episode goes: opening, steps, observations, limits, facts, the end."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from appworld_tiny.catalogue import TASKS

from env_service.base import Message, StepResult
from env_service.contract import checked_init_state, checked_step
from env_service.environments.appworld.env import AppworldEnv
from env_service.environments.appworld.installation import Installation
from env_service.environments.appworld.prompts import EXPLORE

pytestmark = pytest.mark.service
OpenEnv = Callable[..., AppworldEnv]


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def run(env: AppworldEnv, *blocks: str) -> StepResult:
    return env.step(said("\n".join(f"```python\n{block}\n```" for block in blocks)))


def text_of(result: StepResult) -> str:
    assert len(result["state"]) == 1
    return result["state"][0]["content"]


def test_the_opening_shows_the_supervisor_and_the_task(tiny: Installation) -> None:
    env = AppworldEnv("notecount_2", "i")
    opening = env.get_init_state()
    try:
        checked_init_state(opening)
        system, user = opening["state"]
        assert "Ben Hale" in system["content"]
        assert "ben.hale@example.com" in system["content"]
        assert "- simple_note: " in system["content"]
        assert user["content"] == TASKS["notecount_2"].instruction
        assert opening["info"]["datetime"] == "2023-05-18T12:00:00"
        json.dumps(opening)
    finally:
        env.close()


def test_variables_stay_and_printed_text_comes_back(open_env: OpenEnv) -> None:
    env = open_env("notecount_1")
    assert text_of(run(env, "x = 41")) == "Output:\n```\nExecution successful.\n```"
    result = run(env, "print(x + 1)")
    assert text_of(result) == "Output:\n```\n42\n```"
    checked_step(result)
    assert (result["reward"], result["is_terminated"]) == (0.0, False)
    told = {"refused": False, "finished": False, "stop_reason": None}
    assert result["info"] == {"blocks": 1, "executed": 1, "failed": False, "interactions": 2, **told}


def test_blocks_run_in_order_until_one_fails_and_the_rest_is_named(open_env: OpenEnv) -> None:
    env = open_env("notecount_1")
    result = run(env, "print('first')", "1 / 0", "print('third')")
    assert "block 1 of 3:\n```\nfirst" in text_of(result)
    assert "ZeroDivisionError" in text_of(result)
    assert "third" not in text_of(result)
    assert "Not executed, because block 2 failed: 1 more block." in text_of(result)
    assert (result["info"]["executed"], result["info"]["failed"]) == (2, True)


def test_nothing_runs_after_the_task_is_completed_and_the_reward_comes_at_once(open_env: OpenEnv) -> None:
    env = open_env("balance_1")
    result = run(env, "apis.supervisor.complete_task(answer=250)", "print('late')")
    assert "late" not in text_of(result)
    assert "Not executed, because the task is completed" in text_of(result)
    assert (result["reward"], result["is_terminated"], result["info"]["stop_reason"]) == (1.0, True, "finished")
    with pytest.raises(ValueError, match="over"):
        run(env, "print(1)")


def test_a_message_without_code_is_told_what_to_do(open_env: OpenEnv) -> None:
    env = open_env("notecount_1")
    for text in ("Let me think.", "```json\n{}\n```", ""):
        result = env.step(said(text))
        assert text_of(result).startswith("Nothing was executed: ")
        assert "```python" in text_of(result)
        assert result["info"]["executed"] == 0


def test_errors_of_the_apps_reach_the_agent_in_words(open_env: OpenEnv) -> None:
    env = open_env("notecount_1")
    assert "401" in text_of(run(env, "apis.simple_note.search_notes()"))
    assert "422" in text_of(run(env, "apis.simple_note.login()"))
    assert "no_such_api" in text_of(run(env, "apis.simple_note.no_such_api()"))
    assert "Syntax error" in text_of(run(env, "print(("))
    assert "not allowed" in text_of(run(env, "import subprocess"))
    assert "login" in text_of(run(env, "print(apis.api_docs.show_api_descriptions(app_name='venmo'))"))


@pytest.mark.parametrize(
    "exception", ["KeyboardInterrupt()", "SystemExit(3)", "BaseException('odd')", "GeneratorExit()"]
)
def test_no_exception_of_the_agent_ends_the_session(open_env: OpenEnv, exception: str) -> None:
    env = open_env("notecount_1")
    assert "Execution failed" in text_of(run(env, f"kept = 7\nraise {exception}"))
    assert "7" in text_of(run(env, "print(kept)"))


def test_a_long_output_is_cut_with_head_and_tail(open_env: OpenEnv) -> None:
    env = open_env("notecount_1", max_output_chars=500)
    text = text_of(run(env, "print('HEAD' + 'x' * 5_000_000 + 'TAIL')"))
    assert len(text) < 700
    assert "HEAD" in text
    assert "TAIL" in text
    assert "4999509 characters left out" in text


def test_several_long_outputs_share_the_limit(open_env: OpenEnv) -> None:
    env = open_env("notecount_1", max_output_chars=1000)
    assert len(text_of(run(env, "print('a' * 9999)", "print('b' * 9999)"))) < 1400


def test_the_interaction_limit_ends_the_episode_and_grades_it(open_env: OpenEnv) -> None:
    env = open_env("notecount_1", max_interactions=2)
    assert not env.step(said("hm"))["is_terminated"]
    result = run(env, "print(1)")
    assert (result["is_terminated"], result["info"]["stop_reason"], result["reward"]) == (True, "max_interactions", 0.0)
    assert "limit of 2 interactions" in text_of(result)


def test_tool_calls_are_answered_in_the_role_of_a_tool(open_env: OpenEnv) -> None:
    env = open_env("notecount_1")
    call = {"function": {"name": "appworld", "arguments": '{"code": "print(6 * 7)"}'}}
    result = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert result["state"][0]["role"] == "tool"
    assert "42" in text_of(result)
    wrong = env.step(
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "shell", "arguments": "{}"}}]}
    )
    assert "no tool called 'shell'" in text_of(wrong)


def test_the_simple_mode_takes_and_gives_bare_text(open_env: OpenEnv) -> None:
    env = open_env("notecount_1", simple=True)
    assert text_of(env.step(said("print(2 + 2)"))).strip() == "4"


def test_an_open_query_hides_the_task_everywhere_and_is_worth_nothing(tiny: Installation) -> None:
    env = AppworldEnv("pay_1", "i", {"is_open_query": True})
    try:
        opening = env.get_init_state()
        assert opening["state"][-1]["content"] == EXPLORE
        assert "kite" not in json.dumps(opening)
        assert "kite" not in text_of(run(env, "print(apis.supervisor.show_active_task())"))
        assert "Cleo" in text_of(run(env, "print(apis.spotify.show_genres(), apis.supervisor.show_profile(), 'Cleo')"))
        result = run(env, "apis.supervisor.complete_task()")
        assert (result["is_terminated"], result["reward"], env.evaluate()) == (True, 0.0, 0.0)
    finally:
        env.close()


def test_dense_is_the_share_beyond_doing_nothing(open_env: OpenEnv) -> None:
    task = TASKS["noteappend_1"]
    env = open_env(task.id, sparse=False)
    for block in task.wrong():
        result = run(env, block)
    # Four checks: no answer is given (free), the right table, the right note, the wrong text.
    assert result["reward"] == pytest.approx(2 / 3)
    assert env.evaluate(params={"sparse": True}) == 0.0


def test_grading_before_the_end_does_not_disturb_the_episode(open_env: OpenEnv) -> None:
    task = TASKS["noteappend_1"]
    env = open_env(task.id, sparse=False)
    blocks = task.reference()
    assert env.evaluate() == 0.0
    for block in blocks[:-1]:
        run(env, block)
    assert env.evaluate() == pytest.approx(2 / 3)  # all is done but to call the task completed
    assert run(env, blocks[-1])["reward"] == 1.0


def test_get_info_tells_apis_docs_changes_and_checks(open_env: OpenEnv) -> None:
    task = TASKS["alarmoff_1"]
    env = open_env(task.id)
    apis = env.get_info()
    assert len(apis) == 11
    assert "send_text_message" in apis["phone"]
    doc = env.get_info(params={"what": "docs", "app_name": "phone"})["update_alarm"]
    assert {"path", "method", "description", "parameters"} <= set(doc)
    untouched = {"facts": {"changed": {}}, "answer": None, "finished": False, "exact": False}
    assert env.get_info(params={"what": "state"}) == {
        **untouched,
        "completed": False,
        "changed_models": [],
        "api_calls": 0,
    }
    for block in task.reference():
        run(env, block)
    state = env.get_info(params={"what": "state"})
    assert (state["completed"], state["changed_models"]) == (True, ["phone.Alarm"])
    assert env.get_info(params={"what": "checks"})["failures"] == []
    json.dumps([apis, doc])
    for wrong in ({"what": "docs"}, {"what": "docs", "app_name": "nope"}, {"what": "all"}, {"app_name": "phone"}):
        with pytest.raises(ValueError):
            env.get_info(params=wrong)


def test_the_episode_can_be_started_again(open_env: OpenEnv) -> None:
    env = open_env("balance_1")
    run(env, "x = 1\napis.supervisor.complete_task(answer=1)")
    env.get_init_state()
    assert "NameError" in text_of(run(env, "print(x)"))
    assert run(env, "apis.supervisor.complete_task(answer=250)")["reward"] == 1.0


def test_the_same_seed_gives_the_same_world(open_env: OpenEnv) -> None:
    code = "print(apis.simple_note.login(username='ada.moss@example.com', password='ada-simple_note-secret'))"
    first, second, other = open_env("notecount_1"), open_env("notecount_1"), open_env("notecount_1", random_seed=5)
    assert text_of(run(first, code)) == text_of(run(second, code)) != text_of(run(other, code))


def test_two_instances_of_one_task_do_not_see_each_other(open_env: OpenEnv) -> None:
    task = TASKS["notecreate_1"]
    one, two = open_env(task.id), open_env(task.id)
    solution, wrong = task.reference(), task.wrong()
    for mine, theirs in zip(solution[:2], wrong[:2], strict=True):
        run(one, mine)
        run(two, theirs)
    count = "print(len(all_pages(apis.simple_note.search_notes, access_token=sign_in('simple_note'))))"
    assert "10" in text_of(run(one, count))
    assert "10" in text_of(run(two, count))
    assert run(one, solution[-1])["reward"] == 1.0
    assert not two.get_info(params={"what": "state"})["completed"]
    assert run(two, wrong[-1])["reward"] == 0.0
    assert (one.evaluate(), two.evaluate()) == (1.0, 0.0)
