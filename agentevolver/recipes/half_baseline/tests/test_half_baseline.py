"""Half baseline: guided rollouts are compared with guided ones, unguided with unguided."""

from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from advantage_processor.settings import StageSettings
from agentevolver.config.checks import load
from agentevolver.trainer.job.main import check_stages
from agentevolver.trainer.reward_stages import RewardStages
from tests.agentevolver.config.test_checks import BASIC, MODEL
from tests.trajectories import trajectory

USE = "agentevolver.recipes.half_baseline.stage:HalfBaseline"


def rollouts(**groups):
    """Trajectories of the groups `name=[(guided, score), ...]`; the score of a failed rollout is None."""
    return [
        trajectory(
            group_id=name,
            rollout_id=number,
            outcome=None if score is None else {"score": score, "success": score >= 1},
            guidance={"wanted": True, "injected": "look first" if guided else ""},
        )
        for name, members in groups.items()
        for number, (guided, score) in enumerate(members)
    ]


def staged(told):
    return RewardStages([StageSettings(use=USE)], object()).apply(told)


def grpo(told):
    """verl's advantages, one token a rollout."""
    scores = torch.tensor([[one.score] for one in told])
    names = np.array([one.group_id for one in told], dtype=object)
    return compute_grpo_outcome_advantage(scores, torch.ones_like(scores), names)[0][:, 0].tolist()


def test_each_half_is_compared_with_itself():
    told = rollouts(
        a=[(True, 1.0), (True, 0.0), (False, 1.0), (False, 0.0), (False, 0.0), (False, None)],
        b=[(True, 1.0), (True, 1.0), (False, 0.0), (False, 0.0)],
        c=[(False, 1.0), (False, 0.5)],
    )
    metrics = staged(told)
    assert [one.score for one in told] == pytest.approx(
        [0.5, -0.5, 2 / 3, -1 / 3, -1 / 3, None, 0.0, 0.0, 0.0, 0.0, 0.25, -0.25]
    )
    assert metrics["exp_manager/half_gap"] == pytest.approx(((0.5 - 1 / 3) + 1.0) / 2)
    assert [one.outcome.score for one in told[:3]] == [1.0, 0.0, 1.0], "the grade stays what it was"


def test_where_guidance_helps_the_unguided_half_is_no_longer_pushed_down():
    told = rollouts(a=[(True, 1.0)] * 3 + [(True, 0.0)] + [(False, 1.0)] + [(False, 0.0)] * 3)
    assert fmean(grpo(told)[4:]) < -0.4
    staged(told)
    assert fmean(grpo(told)[:4]) == pytest.approx(0, abs=1e-6) == fmean(grpo(told)[4:])


scores = st.sampled_from([0.0, 0.25, 0.7, 1.0])


@settings(deadline=None)
@given(st.lists(scores, min_size=2, max_size=8), st.booleans())
def test_a_group_that_is_guided_as_a_whole_or_not_at_all_keeps_its_advantages(own, guided):
    told = rollouts(a=[(guided, score) for score in own])
    before = grpo(told)
    assert "exp_manager/half_gap" not in staged(told)
    assert grpo(told) == pytest.approx(before, abs=1e-4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), scores), min_size=1, max_size=8))
def test_every_half_has_the_mean_0_and_its_differences(members):
    told = rollouts(a=members)
    staged(told)
    for half in (True, False):
        own = [(one.score, one.outcome.score) for one in told if one.guided is half]
        if own:
            assert fmean(score for score, _ in own) == pytest.approx(0, abs=1e-9)
            assert len({round(score - outcome, 9) for score, outcome in own}) == 1


def test_a_run_is_configured_with_it():
    check_stages(load(BASIC, ["device=cpu", MODEL, f"trainer.reward_stages=[{{use: '{USE}'}}]"]).settings)
