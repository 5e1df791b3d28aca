"""Weights follow what rollout groups did."""

import pytest

from task_manager.mixture import Curriculum
from task_manager.profile import TaskPreference
from task_manager.settings import CurriculumSettings
from tests.constants import settings_with
from tests.trajectories import trajectory

ON = settings_with(CurriculumSettings, enable=True, max_rest_epochs=5, smoothing=1.0)


def group(task_id, *successes, group="g", scores=None):
    scores = scores or [float(success) for success in successes]
    return [
        trajectory(task={"task_id": task_id}, group_id=group, outcome={"success": bool(s), "score": score})
        for s, score in zip(successes, scores, strict=True)
    ]


@pytest.mark.parametrize("outcomes", [(1, 1, 1, 1), (0, 0, 0, 0)])
def test_a_group_without_signal_rests_longer_each_time_and_is_tried_again(outcomes):
    curriculum = Curriculum(ON)
    rested = []
    epoch = 0
    for _ in range(3):
        curriculum.begin_epoch(epoch)
        assert curriculum.weight("a") > 0
        curriculum.record(group("a", *outcomes))
        start = epoch
        while curriculum.weight("a") == 0 or epoch == start:
            epoch += 1
            curriculum.begin_epoch(epoch)
        rested.append(epoch - start - 1)
    assert rested == [2, 4, 5]


def test_tasks_near_the_target_weigh_most_and_none_nothing():
    curriculum = Curriculum(ON)
    for task_id, successes in (("half", (1, 0)), ("most", (1, 1, 1, 0)), ("nearly all", (1,) * 9 + (0,))):
        curriculum.record(group(task_id, *successes))
    weights = [curriculum.weight(task_id) for task_id in ("half", "most", "nearly all")]
    assert weights == sorted(weights, reverse=True) and weights[0] == pytest.approx(1.0) and weights[2] > 0.05


@pytest.mark.parametrize(("success", "shift"), [(1, 1), (0, -1)])
def test_new_tasks_get_harder_with_success_and_easier_without(success, shift):
    curriculum, wanted = Curriculum(ON), TaskPreference(num_entities=2, num_opts=3, relation_difficulty=2)
    assert curriculum.preference(wanted) == wanted
    for number in range(60):
        curriculum.record(group("a", success, success, group=str(number)))
    assert curriculum.preference(wanted) == wanted.shifted(shift)


def test_equal_failures_with_different_scores_are_a_signal():
    curriculum = Curriculum(ON)
    curriculum.record(group("a", 0, 0, scores=[0.1, 0.3]))
    curriculum.begin_epoch(1)
    assert curriculum.weight("a") > 0


def test_rollouts_that_failed_count_for_nothing():
    curriculum = Curriculum(ON)
    curriculum.record([trajectory(task={"task_id": "a"}, group_id="g"), *group("b", 1, 0)])
    assert curriculum.metrics()["curriculum/known"] == 1
