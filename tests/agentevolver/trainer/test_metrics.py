from dataclasses import replace

import pytest

from agentevolver.trainer.failures import FailureGuard, RolloutsFailed
from agentevolver.trainer.metrics import metrics_apart, rollout_metrics
from tests.trajectories import trajectory


def record(group="g", score=1.0, stop="finished", attempts=1, error=""):
    outcome = None if score is None else {"score": score, "success": score >= 1, "reason": ""}
    step = {"action_tokens": 5, "truncated": False, "generate_s": 0.1, "env_s": 0.01}
    return trajectory(
        group_id=group, outcome=outcome, stop_reason=stop, attempts=attempts, error=error, seconds=0.3,
        steps=[step, step] if outcome else [],
    )  # fmt: skip


def failed(stop="env_error", error="gone"):
    return record(score=None, stop=stop, error=error)


def test_metrics_count_failed_rollouts_apart_from_graded_ones():
    metrics = rollout_metrics([record(score=1.0), record(score=0.0, stop="max_steps"), failed()], gen_s=2.0)
    assert metrics["rollout/reward/mean"] == 0.5
    assert metrics["rollout/failed"] == 1
    assert metrics["training/num_term_traj"] == 1
    assert metrics["rollout/stop_reason/env_error"] == 1
    assert metrics["rollout/action_tokens"] == 20
    assert metrics["rollout/tokens_per_s"] == 10


def test_the_guard_ends_the_run_after_failed_steps_in_a_row_only():
    guard = FailureGuard(0.5, 2)
    bad, good = [failed(), failed(), record()], [record(), record(), failed()]
    guard.check(bad)
    guard.check(good)
    guard.check(bad)
    with pytest.raises(RolloutsFailed):
        guard.check(bad)


def of(env_type, one):
    return replace(one, task=replace(one.task, env_type=env_type))


def test_a_mixtures_metrics_are_told_for_each_environment_under_its_name():
    found = metrics_apart([of("pocket", record()), of("pocket", record(score=0.0)), of("lake", failed())])
    assert found["rollout/success/pocket"] == found["rollout/reward/mean/pocket"] == 0.5
    assert found["rollout/trajectories/pocket"] == 2 and found["rollout/steps/mean/pocket"] == 2
    assert found["rollout/failed/lake"] == found["rollout/trajectories/lake"] == 1
    assert "rollout/success/lake" not in found and "rollout/tokens_per_s/pocket" not in found


def test_one_environment_of_several_that_fails_makes_the_step_a_failed_one_and_is_named():
    guard = FailureGuard(0.5, 2)
    step = [*(of("pocket", record()) for _ in range(6)), *(of("lake", failed()) for _ in range(2))]
    guard.check(step)
    with pytest.raises(RolloutsFailed, match=r"2 of 8 rollouts .*2 x env_error, 2 of 2 in lake\); the last one: gone"):
        guard.check(step)
