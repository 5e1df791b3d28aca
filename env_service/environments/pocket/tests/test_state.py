"""What an instance says of its state, and what it refuses to say."""

import pytest

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tests.replays import reference


def state(env):
    return env.get_info(params={"what": "state"})


def test_the_state_names_what_a_solution_changed_and_nothing_else():
    task_id = "note_add.k3.7"
    env = PocketEnv(task_id, "i", {"is_open_query": True, "explore_steps": 9})
    before = state(env)
    for action in reference(task_id):
        env.step({"role": "assistant", "content": action})
    after = state(env)
    assert before["answer"] is None and before["steps"] == 0
    assert after["answer"] == "" and after["steps"] == len(reference(task_id))
    added = {k: v for k, v in after["facts"]["note"].items() if k not in before["facts"]["note"]}
    assert len(added) == 1
    assert {**after["facts"], "note": before["facts"]["note"]} == before["facts"]


def test_reading_changes_no_state_and_an_answer_is_kept():
    env = PocketEnv("balance.k2.5", "i", {"is_open_query": True})
    before = state(env)["facts"]
    for action in ("shop.orders", "me.pin", "done 12"):
        env.step({"role": "assistant", "content": action})
    assert state(env) == {"facts": before, "answer": "12", "finished": True, "exact": True, "steps": 3}


@pytest.mark.parametrize("params", [{"what": "answers"}, {"which": "state"}, {"what": "state", "of": "me"}])
def test_other_questions_are_refused(params):
    with pytest.raises(ValueError, match="what=state"):
        PocketEnv("balance.k2.5", "i").get_info(params=params)
