import dataclasses
import logging

import pytest

from agentevolver.trainer.no_signal import make_watch
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
