"""All 800 tasks: the reference solves each, silence and wrong answers solve none, and the verdict is the package's
own."""

from __future__ import annotations

import importlib
import json
import os
import random

import pytest

from env_service.environments.bfcl.calls import BfclCall
from env_service.environments.bfcl.env import MAX_STEPS_PER_TURN
from env_service.environments.bfcl.package import CATEGORIES, load_package
from env_service.environments.bfcl.tests.replay import Turns, all_task_ids, play, reference_turns

pytestmark = pytest.mark.service  # a whole benchmark, several times
ROUNDS = int(os.environ.get("BFCL_DIFFERENTIAL_ROUNDS", "0"))
"""Changed solutions of every task; 0 tries one of every fourth task."""


def ids_of(category: str) -> list[str]:
    return [task_id for task_id in all_task_ids() if task_id.startswith(category)]


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_reference_calls_of_every_task_score_one(category: str) -> None:
    ids = ids_of(category)
    failed = []
    for task_id in ids:
        env, answer = play(reference_turns(task_id), task_id, one_call_per_message=False)
        scores = (answer["is_terminated"], answer["reward"], env.evaluate(), env.evaluate(params={"sparse": False}))
        if scores != (True, 1.0, 1.0, 1.0):
            failed.append((task_id, scores, env.get_info(params={"what": "report"})["verdicts"]))
    assert (len(ids), failed) == (200, [])


def test_the_reference_solves_with_one_call_a_message_wherever_the_benchmarks_step_limit_leaves_room() -> None:
    too_long = []
    for task_id in all_task_ids():
        turns = reference_turns(task_id)
        env, answer = play(turns, task_id)
        if max(len(calls) for calls in turns) > MAX_STEPS_PER_TURN:
            too_long.append(task_id)
            assert (answer["info"]["stop_reason"], env.evaluate()) == ("max_steps_per_turn", 0.0)
        else:
            assert (task_id, env.evaluate()) == (task_id, 1.0)
    assert too_long == ["multi_turn_long_context_38", "multi_turn_long_context_46"]


@pytest.mark.parametrize("category", CATEGORIES)
def test_an_answer_without_any_call_scores_zero_on_every_task(category: str) -> None:
    for task_id in ids_of(category):
        env, answer = play([[] for _ in load_package().tasks[task_id].truth], task_id)
        assert answer["is_terminated"]
        assert (task_id, env.evaluate(), env.evaluate(params={"sparse": False})) == (task_id, 0.0, 0.0)


@pytest.mark.parametrize("category", CATEGORIES)
def test_leaving_out_the_last_call_scores_zero_on_every_task(category: str) -> None:
    for task_id in ids_of(category):
        turns = reference_turns(task_id)
        last = max(index for index, calls in enumerate(turns) if calls)
        turns[last] = turns[last][:-1]
        env, _ = play(turns, task_id)
        assert (task_id, env.evaluate()) == (task_id, 0.0)
        assert 0.0 <= env.evaluate(params={"sparse": False}) < 1.0


@pytest.mark.parametrize("category", CATEGORIES)
def test_calling_what_does_not_exist_scores_zero(category: str) -> None:
    for task_id in ids_of(category)[::4]:
        env, _ = play(
            [[BfclCall("do_what_the_user_wants", {})] if calls else [] for calls in reference_turns(task_id)], task_id
        )
        assert (task_id, env.evaluate()) == (task_id, 0.0)


@pytest.mark.parametrize("category", ["multi_turn_miss_func", "multi_turn_miss_param"])
def test_a_call_in_a_turn_where_something_is_missing_fails_the_irrelevance_check_alone(category: str) -> None:
    for task_id in ids_of(category)[::4]:
        turns = reference_turns(task_id)
        silent = next(index for index, calls in enumerate(turns) if not calls)
        turns[silent] = [BfclCall("do_what_the_user_wants", {})]
        env, _ = play(turns, task_id)
        assert (task_id, env.evaluate(), env.evaluate(params={"irrelevance": False})) == (task_id, 0.0, 1.0)


def package_verdict(turns: Turns, task_id: str) -> bool:
    """Ask the package's checker about the same calls, one call a step, written as the Python text that it evaluates."""
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    utils = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    task = load_package().tasks[task_id]
    entry = {"id": task_id, "initial_config": task.initial_config, "involved_classes": list(task.involved_classes)}
    texts = [
        [[f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})"] for c in calls] for calls in turns
    ]
    truth = [list(turn) for turn in task.truth]
    try:
        return bool(checker.multi_turn_checker(texts, truth, entry, task.category, "differential")["valid"])
    finally:
        for name in [name for name in vars(utils) if name.endswith("_instance")]:
            del vars(utils)[name]


def mutate(turns: Turns, rng: random.Random) -> Turns:
    """Change an episode in one way that a model might: leave out, repeat, reorder, delay, look around, mistype."""
    turns = [list(calls) for calls in turns]
    at = rng.choice([index for index, calls in enumerate(turns) if calls])
    calls, pick = turns[at], rng.randrange(len(turns[at]))
    match rng.randrange(7):
        case 0:
            del calls[pick]
        case 1:
            calls.insert(rng.randrange(len(calls) + 1), calls[pick])
        case 2:
            rng.shuffle(calls)
        case 3:
            turns[min(at + 1, len(turns) - 1)].insert(0, calls.pop(pick))
        case 4:
            looks = [
                "pwd",
                "ls",
                "displayCarStatus",
                "get_watchlist",
                "list_users",
                "ticket_get_login_status",
                "get_all_credit_cards",
            ]
            rng.choice(turns).insert(0, BfclCall(rng.choice(looks), {}))
        case 5:
            calls[pick] = BfclCall(
                calls[pick].name, {key: mistype(value, rng) for key, value in calls[pick].arguments.items()}
            )
        case _:
            calls[pick] = BfclCall(calls[pick].name, dict(list(calls[pick].arguments.items())[1:]))
    return turns


def mistype(value: object, rng: random.Random) -> object:
    if rng.random() < 0.5:
        return value
    if isinstance(value, str):
        return rng.choice([value.lower(), value + " ", ""])
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else None


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_verdict_equals_the_packages_checker_on_changed_solutions(category: str) -> None:
    seen = {True: 0, False: 0}
    for task_id in ids_of(category) if ROUNDS else ids_of(category)[::4]:
        for number in range(ROUNDS or 1):
            turns = mutate(reference_turns(task_id), random.Random(f"{task_id}/{number}"))
            env, _ = play(turns, task_id, {"max_steps_per_turn": 1000})
            ours, theirs = env.evaluate(params={"irrelevance": False}) == 1.0, package_verdict(turns, task_id)
            assert ours == theirs, (
                task_id,
                number,
                json.dumps([[c.__dict__ for c in calls] for calls in turns], default=str),
            )
            seen[ours] += 1
    assert min(seen.values()) >= 5, f"the changes should leave some solutions right and break others: {seen}"
