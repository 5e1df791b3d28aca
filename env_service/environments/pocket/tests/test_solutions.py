"""Reference solutions, doing nothing, and the checks between the two."""

import pytest

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.grading import checks
from env_service.environments.pocket.tasks import SPLITS, make_task
from env_service.environments.pocket.tests.replays import reference, replay


def play(task_id, actions, **params):
    env = PocketEnv(task_id, "i", params)
    env.get_init_state()
    result = None
    for text in actions:
        result = env.step({"role": "assistant", "content": text})
    return env, result


@pytest.mark.thorough
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("syntax", ["compact", "json"])
def test_every_reference_solution_succeeds_without_slack(split, syntax):
    for task_id in PocketEnv.get_query_list(split):
        env, result = play(task_id, reference(task_id, syntax), slack=0, syntax=syntax)
        assert result["is_terminated"] and result["reward"] == 1.0, (task_id, checks(env.task, env.world))
        assert env.evaluate(params={"sparse": False}) == 1.0
        assert env.errors == 0


@pytest.mark.thorough
@pytest.mark.parametrize("split", SPLITS)
def test_an_immediate_done_scores_nothing(split):
    for task_id in PocketEnv.get_query_list(split):
        env, result = play(task_id, ["done"])
        assert result["reward"] == 0.0, task_id
        assert env.evaluate(params={"sparse": False}) == 0.0, task_id


def test_a_solution_without_done_does_not_pass_but_earns_dense_credit():
    result = replay("pay.k0.1", reference("pay.k0.1")[:-1])
    assert result.sparse == 0.0
    assert result.dense == pytest.approx(0.5), (
        "balance and payment are right, but nothing was finished: 3 of 4 checks where idling has 2"
    )


def test_a_side_effect_is_caught():
    task_id = "pay.k0.1"
    solved = reference(task_id)
    spoilt = replay(task_id, ["mail.send bob milk", *solved])
    assert spoilt.finished and spoilt.sparse == 0.0
    assert 0.0 < spoilt.dense < 1.0
    assert ("sent", "bob", "milk") in spoilt.changes


def test_doing_the_right_thing_twice_is_a_side_effect():
    for task_id in ("mail_send.k0.1", "pay.k0.1"):
        *work, done = reference(task_id)
        assert replay(task_id, [*work, done]).sparse == 1.0
        assert replay(task_id, [*work, work[-1], done]).sparse == 0.0


def test_a_change_that_is_taken_back_does_no_harm():
    task_id = "note_retag.k0.1"
    *work, change, done = reference(task_id)
    tag = make_task(task_id).plan[1].args[1]
    other = change.replace(f" {tag}", " home" if tag != "home" else " fun")
    assert replay(task_id, [*work, other, change, done]).sparse == 1.0


def test_the_answer_must_be_right_and_only_where_one_is_asked_for():
    *work, done = reference("price.k0.1")
    price = int(done.split()[1])
    assert replay("price.k0.1", [*work, f"done {price + 1}"]).sparse == 0.0
    assert replay("price.k0.1", [*work, "done"]).sparse == 0.0
    assert replay("price.k0.1", [*work, f"done  {price}."]).sparse == 1.0
    *work, done = reference("note_add.k0.1")
    assert replay("note_add.k0.1", [*work, "done I wrote it down"]).sparse == 1.0


def test_the_wrong_branch_of_a_condition_fails():
    for seed in range(20):
        for family in ("if_price", "if_free", "if_rich"):
            task = make_task(f"{family}.k0.{seed}")
            wrong = "mail.send bob milk" if task.plan[1].tool != "mail.send" else "note.add milk home"
            assert replay(task.id, [wrong, "done"]).sparse == 0.0
