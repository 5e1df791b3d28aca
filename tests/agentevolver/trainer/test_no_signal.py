import dataclasses
import logging
import random
from itertools import combinations
from statistics import mean

import pytest

from agentevolver.trainer.no_signal import expected_without_signal, make_watch
from agentevolver.types import Reward
from tests.trajectories import trajectory


def step(*groups):
    """A step's rollouts from the scores of each group; None is a rollout that failed."""
    return [
        trajectory(
            group_id=str(place),
            stop_reason="env_error" if score is None else "finished",
            steps=[{}],
            outcome=None if score is None else {"score": score, "success": score == 1.0},
        )
        for place, scores in enumerate(groups)
        for score in scores
    ]


DULL, SPLIT = step((0.0, 0.0), (0.0, None)), step((0.0, 0.0), (0.0, 1.0))


def test_it_comes_after_so_many_steps_in_a_row_again_when_they_have_doubled_and_goes_with_a_signal(caplog):
    watch = make_watch(3, "grpo", 2)
    with caplog.at_level(logging.WARNING):
        said = [watch.look(one) for one in (DULL, DULL, SPLIT, DULL, DULL, DULL, DULL, DULL, DULL, SPLIT)]
    assert [None if text is None else text[:13] for text in said] == [
        *[None] * 5,
        *["in the last 3"] * 3,
        "in the last 6",
        None,
    ]
    assert [record.getMessage() for record in caplog.records] == [said[5], said[8]]


@pytest.mark.parametrize(("score", "shaped", "advice"), [(0.0, 0.2, "none succeeds"), (1.0, 0.0, "each succeeds")])
def test_it_advises_by_what_the_environment_said_not_by_what_reward_stages_made_of_it(score, shaped, advice):
    rollouts = [
        dataclasses.replace(one, reward=Reward(shaped, {"stage": shaped - score})) for one in step((score, score))
    ]
    assert advice in (make_watch(1, "grpo", 2).look(rollouts) or "")


@pytest.mark.parametrize(("steps", "estimator", "n"), [(None, "grpo", 2), (1, "grpo", 1), (1, "gae", 2)])
def test_nothing_is_said_where_it_is_not_wanted_or_groups_are_not_what_is_learnt_from(steps, estimator, n):
    assert make_watch(steps, estimator, n).look(DULL) is None


def test_the_forecast_is_the_share_of_alike_groups_among_all_that_could_be_drawn():
    tasks = [(0, 4), (1, 4), (2, 4), (4, 4)]
    alike = [mean(len(set(group)) == 1 for group in combinations([1] * c + [0] * (m - c), 2)) for c, m in tasks]
    assert expected_without_signal(tasks, 2) == pytest.approx(mean(alike))
    assert expected_without_signal([(1, 4)] * 100, 1) == 1.0


@pytest.mark.parametrize("m", [2, 4])
def test_with_fewer_rollouts_than_a_group_the_forecast_is_near_the_truth(m):
    rng = random.Random(m)
    chances = [rng.betavariate(0.8, 1.6) for _ in range(20_000)]
    tasks = [(sum(rng.random() < p for _ in range(m)), m) for p in chances]
    truth = mean(p**8 + (1 - p) ** 8 for p in chances)
    assert expected_without_signal(tasks, 8) == pytest.approx(truth, abs=0.02)
    assert expected_without_signal([(c, m) for c in (0, m)] * 9, 8) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([(0.0, 0.0), (0.0, 0.0), (1.0, 0.0)], "with 0.17 success at the start about 67% of groups of 2"),
        ([(0.0, None)], "at least about 100% of groups of 2"),
        ([(0.5, 1.0)], None),
    ],
)
def test_before_the_first_step_one_line_tells_the_forecast(groups, told):
    rollouts = [
        dataclasses.replace(one, task=dataclasses.replace(one.task, task_id=one.group_id)) for one in step(*groups)
    ]
    said = []
    watch = make_watch(3, "grpo", 2, tell=said.append)
    assert watch.after_validation(0, rollouts) == {} and len(said) == (told is not None)
    assert told is None or told in said[0]
    watch.after_validation(1, rollouts)
    make_watch(3, "gae", 2, tell=said.append).after_validation(0, rollouts)
    assert len(said) == (told is not None)
