"""The references solve their tasks, nothing solves few, and the verdict is the one of the benchmark's own scorer.

`TAU2_DIFFERENTIAL_ROUNDS=1` compares a changed reference of every task (minutes: the scorer parses each database anew);
without it, of one task in forty.
"""

from __future__ import annotations

import os
import random

import pytest
from tau2_replay import changed, official, play, reference

from env_service.environments.tau2.env import Tau2Env
from env_service.environments.tau2.package import DOMAINS, domain

pytestmark = [pytest.mark.service, pytest.mark.timeout(3600)]

USERS = [("airline", "scripted"), ("retail", "scripted"), ("telecom", "scripted"), ("telecom", "solo")]
RIGHT_WHEN_NOTHING_IS_DONE = {"airline": 19, "retail": 7, "telecom": 0}
ROUNDS = int(os.environ.get("TAU2_DIFFERENTIAL_ROUNDS", "0"))


@pytest.mark.parametrize(("name", "user"), USERS)
def test_every_reference_is_worth_one_and_leaves_the_shared_database_as_it_was(name: str, user: str) -> None:
    ids = Tau2Env.get_query_list("base", {"domains": [name]})
    before = domain(name).database.get_hash()
    played = {task: play(task, reference(task), user=user) for task in ids}
    assert [task for task, env in played.items() if env.evaluate() != 1.0] == []
    assert [task for task, env in played.items() if env.evaluate(params={"sparse": False}) != 1.0] == []
    assert domain(name).database.get_hash() == before


@pytest.mark.parametrize("name", DOMAINS)
def test_doing_nothing_is_worth_its_own_figure(name: str) -> None:
    ids = Tau2Env.get_query_list("base", {"domains": [name]})
    assert sum(play(task, []).evaluate() for task in ids) == RIGHT_WHEN_NOTHING_IS_DONE[name]


@pytest.mark.parametrize(("name", "user"), USERS)
def test_the_verdict_on_changed_references_is_the_official_one(name: str, user: str) -> None:
    rng = random.Random(f"{name} {user}")
    ids = Tau2Env.get_query_list("base", {"domains": [name]})
    for task in ids * ROUNDS or ids[::40]:
        kind, moves = changed(reference(task), rng)
        env = play(task, moves, stop=rng.random() > 0.05, user=user)
        assert env.evaluate() == official(env), (task, kind)
