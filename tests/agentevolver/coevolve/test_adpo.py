"""ADPO's curves: the vectors of the specification, and that they act where they are meant to."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advantage_processor.adpo import P_HAT, advantage_scale, p_hat, trust, upper_clip
from advantage_processor.grpo import outcome_advantages
from agentevolver.trainer.loss import selective_ppo_loss
from tests.agentevolver.coevolve.golden import golden
from tests.agentevolver.trainer.test_loss import Batch, config

GOLDEN = golden("adpo")
P = st.floats(0, 1)


@pytest.mark.parametrize("case", GOLDEN["curves"], ids=str)
def test_golden_curves(case):
    assert advantage_scale(case["p"]) == pytest.approx(case["scale_06"])
    assert advantage_scale(case["p"], s_min=0.5) == pytest.approx(case["scale_05"])
    assert upper_clip(case["p"], 0.2) == pytest.approx(case["upper"])


def test_golden_advantages():
    case = GOLDEN["advantages"]
    rewards = torch.tensor(case["rewards"], dtype=torch.float64)
    advantages = outcome_advantages(rewards, torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool))
    assert advantages.tolist() == pytest.approx(case["advantages"], abs=1e-5)
    assert (advantages * advantage_scale(case["p"])).tolist() == pytest.approx(case["scaled"], abs=1e-5)


@pytest.mark.parametrize("case", GOLDEN["clip"], ids=lambda case: case["why"])
def test_golden_clip_in_the_loss_that_trains(case):
    row = {"log_ratio": [math.log(case["ratio"])], "advantage": [float(case["advantage"])], "mask": [1]}
    batch = Batch([row], bounds=[upper_clip(case["p"], 0.2)])
    loss, gradient, _ = batch.run(partial(selective_ppo_loss, config=config()))
    assert loss == pytest.approx(case["loss"], abs=1e-5)
    assert gradient.tolist() == pytest.approx([case["gradient"]], abs=1e-5)


@given(P, P)
def test_the_surer_the_larger_the_update_and_the_narrower_the_clip(first, second):
    low, high = sorted((first, second))
    assert 0.6 <= advantage_scale(low) <= advantage_scale(high) <= 1.0
    assert 0.2 <= upper_clip(high, 0.2) <= upper_clip(low, 0.2) <= 0.2 + 0.1
    assert 0.0 <= trust(low, 0.3, 0.8) <= trust(high, 0.3, 0.8) <= 1.0
    assert advantage_scale(low) - 0.6 == pytest.approx(0.4 * (1 - (upper_clip(low, 0.2) - 0.2) / 0.1))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), P)
def test_before_the_normalisation_it_would_do_nothing(scores, p):
    rewards = torch.tensor(scores, dtype=torch.float64)
    if float(rewards.std()) < 1e-2:
        return
    groups, valid = torch.zeros(len(scores), dtype=torch.long), torch.ones(len(scores), dtype=torch.bool)
    plain = outcome_advantages(rewards, groups, valid)
    before = outcome_advantages(rewards * advantage_scale(p), groups, valid)
    torch.testing.assert_close(before, plain, atol=1e-3, rtol=1e-3)
    after = plain * advantage_scale(p)
    assert float(after.std()) == pytest.approx(advantage_scale(p), abs=1e-3)


def test_a_task_that_does_not_say_p_is_an_error_and_null_is_none():
    assert p_hat({P_HAT: None}) is None
    with pytest.raises(ValueError, match=r"without metadata\['adpo_p_hat'\]"):
        p_hat({"score": 1.0, "p_hat": 0.5})


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.array([0.5], dtype=object)[0]])
def test_a_share_is_read_whatever_its_type(value):
    assert p_hat({P_HAT: value, "score": -1.0}) == float(value)


@pytest.mark.parametrize("value", ["0.5", True, -0.1, 1.1, math.nan, [0.5]])
def test_what_is_no_share_is_refused(value):
    with pytest.raises(ValueError, match="expected a share"):
        p_hat({P_HAT: value})
