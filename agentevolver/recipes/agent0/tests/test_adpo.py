"""ADPO's golden file: the curves, a group's advantages, and the clip in the loss that trains."""

import math
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from advantage_processor.grpo import outcome_advantages
from agentevolver.recipes.adpo.ambiguity import scale, upper_clip
from agentevolver.recipes.agent0.tests.golden import golden
from agentevolver.trainer.loss import selective_ppo_loss
from tests.agentevolver.trainer.test_loss import Batch, config

GOLDEN = golden("adpo")


@pytest.mark.parametrize("case", GOLDEN["curves"], ids=str)
def test_golden_curves(case):
    assert scale(case["p"], 0.3, 0.8, 0.6) == pytest.approx(case["scale_06"])
    assert scale(case["p"], 0.3, 0.8, 0.5) == pytest.approx(case["scale_05"])
    assert upper_clip(case["p"], 0.2, 0.3, 0.8, 0.1) == pytest.approx(case["upper"])


def of_one_group(rewards):
    values = torch.tensor(rewards, dtype=torch.float64)
    return outcome_advantages(values, torch.zeros(len(values), dtype=torch.long), torch.ones(len(values)).bool())


def test_golden_advantages():
    case = GOLDEN["advantages"]
    advantages = of_one_group(case["rewards"])
    assert advantages.tolist() == pytest.approx(case["advantages"], abs=1e-5)
    assert (advantages * scale(case["p"], 0.3, 0.8, 0.6)).tolist() == pytest.approx(case["scaled"], abs=1e-5)


@pytest.mark.parametrize("case", GOLDEN["clip"], ids=lambda case: case["why"])
def test_golden_clip_in_the_loss_that_trains(case):
    row = {"log_ratio": [math.log(case["ratio"])], "advantage": [float(case["advantage"])], "mask": [1]}
    batch = Batch([row], bounds=[upper_clip(case["p"], 0.2, 0.3, 0.8, 0.1)])
    loss, gradient, _ = batch.run(partial(selective_ppo_loss, config=config()))
    assert loss == pytest.approx(case["loss"], abs=1e-5)
    assert gradient.tolist() == pytest.approx([case["gradient"]], abs=1e-5)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0, 1))
def test_before_the_normalisation_it_would_do_nothing(rewards, p):
    assume(float(torch.tensor(rewards).std()) > 1e-2)
    factor, plain = scale(p, 0.3, 0.8, 0.6), of_one_group(rewards)
    torch.testing.assert_close(of_one_group([factor * reward for reward in rewards]), plain, atol=1e-3, rtol=1e-3)
    assert float((factor * plain).std()) == pytest.approx(factor, abs=1e-3)
