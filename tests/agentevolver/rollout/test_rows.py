"""A rollout as verl's rows: tokens as recorded, failures masked and counted."""

import pytest

from agentevolver.rollout.rollout import Rollout
from agentevolver.rollout.rows import to_outputs, to_row
from agentevolver.trainer.validation import validation_metrics
from agentevolver.types import Outcome, StopReason, Task, TrainingSample, Trajectory

SAMPLE = TrainingSample([1, 2], [3, 4, 5], [1, 0, 1], [-0.1, 0.0, -0.2], [0, -1, 1])
ROW = {"uid": "u", "session_id": 3, "index": 0, "data_source": "pocket", "reward_model": {}, "global_steps": 7}


def rollout(samples=(SAMPLE,), score=1.0, stop=StopReason.FINISHED):
    outcome = None if score is None else Outcome(score, score >= 1)
    return Rollout(
        Trajectory(Task("t", "pocket"), "u", 3, [], [], stop, outcome), list(samples), {6} if samples else set()
    )


def test_a_sample_becomes_a_row_of_the_ids_and_numbers_that_were_recorded():
    (output,) = to_outputs(rollout(), 9, 6, validation=False)
    fields, tag = to_row(output, ROW)
    assert fields["prompts"].tolist() == [1, 2] and fields["responses"].tolist() == [3, 4, 5]
    assert fields["response_mask"].tolist() == [1, 0, 1]
    assert fields["rollout_log_probs"].tolist() == pytest.approx([-0.1, 0.0, -0.2])
    assert fields["rm_scores"].tolist() == [0, 0, 1]
    assert fields["input_ids"].tolist() == [1, 2, 3, 4, 5] and fields["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert tag["seq_len"] == 5 and tag["min_global_steps"] == 6
    assert output.extra_fields["step_ids"] == [0, -1, 1] and not output.extra_fields["masked"]


def test_validation_counts_what_was_graded_whether_or_not_it_left_a_sample():
    unopened = rollout(samples=(), score=0.0, stop=StopReason.CONTEXT_FULL)
    failed = rollout(samples=(), score=None, stop=StopReason.ENV_ERROR)
    outputs = [output for one in (rollout(), unopened, failed) for output in to_outputs(one, 9, 6, validation=True)]
    reports = [output.extra_fields["reward_extra_info"] for output in outputs]
    rewards, masked = [output.reward_score for output in outputs], [bool(report["masked"]) for report in reports]
    assert [output.response_mask for output in outputs[1:]] == [[0], [0]]
    metrics = validation_metrics(["x/val"] * 3, ["a", "a", "b"], {"reward": rewards}, masked, n=2)
    assert metrics["val-core/x/val/reward/mean@2"] == 0.5, (
        "the opening that did not fit is a failure of the policy's task"
    )
    assert metrics["val-aux/x/val/failed_rollouts"] == 1.0


def test_the_record_is_carried_once_and_where_verl_hands_it_on():
    outputs = to_outputs(rollout(samples=(SAMPLE, SAMPLE)), 9, 6, validation=False)
    assert ["trajectory" in o.extra_fields for o in outputs] == [False, True]
    outputs = to_outputs(rollout(samples=(SAMPLE, SAMPLE)), 9, 6, validation=True)
    assert ["trajectory" in o.extra_fields["reward_extra_info"] for o in outputs] == [False, True]
