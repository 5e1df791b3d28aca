"""The world of the paper's regime: one long goal across apps, few tasks, one outcome at the end."""

import re

import pytest

from env_service.environments.pocket.app_env import MAX_CALLS, PocketAppEnv
from env_service.environments.pocket.app_tasks import LEAST_CALLS, LINKS, MOST_CALLS, N_LINKS, SIZES, make_app_task
from env_service.environments.pocket.quirks import TEST_SITES, TRAIN_SITES
from env_service.environments.pocket.wordings import APP_LINKS


def play(task_id, actions, **params):
    env = PocketAppEnv(task_id, "i", params)
    env.get_init_state()
    results = [env.step({"role": "assistant", "content": str(text)}) for text in actions]
    return env, results


def tasks_of(split, n=None):
    return [make_app_task(task_id) for task_id in PocketAppEnv.get_query_list(split, {"n": n} if n else None)]


@pytest.mark.parametrize("split", SIZES)
def test_every_reference_solution_is_of_the_regime_and_earns_one_reward_at_the_end(split):
    for task in tasks_of(split):
        assert LEAST_CALLS <= len(task.solution) <= MOST_CALLS
        apps = {call.tool.split(".")[0] for call in task.solution} - {"done", "doc", "me"}
        assert len(apps) >= 3
        env, results = play(task.id, task.solution, slack=0)
        assert [r["reward"] for r in results] == [0.0] * (len(results) - 1) + [1.0]
        assert env.errors == 0 and results[-1]["info"]["stop_reason"] == "finished"


def test_a_goal_names_neither_its_thing_nor_its_person_and_what_is_not_named_must_be_looked_up():
    for task in tasks_of("train"):
        env = PocketAppEnv(task.id, "i", {})
        words, known = set(task.query.split()), set(task.query.split()) | {"yes", "1"}
        env.get_init_state()
        for call in task.solution:
            hidden = [a for a in call.args if a not in known and not re.fullmatch(r"[a-z]+\.[a-z]+", a)]
            assert not hidden, (task.query, str(call), hidden)
            known |= set(env.step({"role": "assistant", "content": str(call)})["state"][0]["content"].split())
        assert not {row[1] for row in env.world.tables.mails.values()} & words


def test_a_goal_half_done_or_done_too_much_earns_nothing():
    for task in tasks_of("dev", 12):
        changes = [
            i for i, call in enumerate(task.solution) if call.tool.split(".")[-1] in ("pay", "send", "buy", "add")
        ]
        for left_out in changes[:1]:
            rest = [call for i, call in enumerate(task.solution) if i != left_out]
            assert play(task.id, rest)[0].evaluate() == 0.0
        assert play(task.id, ["mail.send ann milk", *task.solution])[0].evaluate() == 0.0


def test_the_budget_is_that_of_the_paper_at_most():
    for task in tasks_of("test"):
        assert PocketAppEnv(task.id, "i").max_steps == len(task.solution) + 8 <= MAX_CALLS == 30
    assert PocketAppEnv("app.k3.1", "i", {"slack": 99}).max_steps == MAX_CALLS


def test_splits_are_small_share_no_task_and_the_tests_sites_are_never_trained_on():
    splits = {split: PocketAppEnv.get_query_list(split) for split in SIZES}
    assert {split: len(ids) for split, ids in splits.items()} == {"train": 90, "dev": 60, "test": 120, "hard": 60}
    assert len({task_id for ids in splits.values() for task_id in ids}) == 330
    sites = {split: {int(i.split(".")[1][1:]) for i in ids} for split, ids in splits.items()}
    assert sites["train"] == sites["dev"] == set(TRAIN_SITES) and sites["test"] == set(TEST_SITES)
    queries = {split: {task.query for task in tasks_of(split)} for split in SIZES}
    assert not queries["train"] & (queries["dev"] | queries["test"])
    held_out = [wordings[2] for wordings in APP_LINKS.values()]
    assert set(LINKS) == set(APP_LINKS) and not any(
        text.split(" {")[0] in query and "{" not in text for text in held_out for query in queries["dev"]
    )


@pytest.mark.parametrize("task_id", ["app.k32.1", "price.k3.1", "app.k3", "app.k3.01", "long.k3.1"])
def test_an_id_that_is_none_is_refused(task_id):
    with pytest.raises(ValueError, match=r"k32|app\.k3\.17"):
        PocketAppEnv(task_id, "i")


def test_exploring_needs_no_task_and_sees_the_tasks_own_world():
    task = tasks_of("train", 1)[0]
    env = PocketAppEnv(task.id, "i", {"is_open_query": True})
    assert env.is_open and env.max_steps == 12 and env.world.tables.facts() == task.start
    assert PocketAppEnv("open.k3.7", "i").is_open
    with pytest.raises(ValueError, match="levels"):
        PocketAppEnv.get_query_list("train", {"levels": [1]})


@pytest.mark.parametrize("links", range(1, N_LINKS + 1))
def test_goals_with_fewer_links_are_shorter_and_are_solved_by_their_reference(links):
    for task in tasks_of("dev", 12):
        shorter = make_app_task(task.id, links)
        assert shorter.query.count(" , ") - task.query.count(" , ") == links - N_LINKS
        assert (shorter == task) is (links == N_LINKS)
        env, _ = play(task.id, shorter.solution, links=links, slack=0)
        assert env.evaluate() == 1.0


@pytest.mark.parametrize("links", [0, N_LINKS + 1])
def test_a_number_of_links_that_there_is_not_is_refused(links):
    with pytest.raises(ValueError, match="links"):
        PocketAppEnv("app.k3.1", "i", {"links": links})
