import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.workers.config.actor import PolicyLossConfig

from agentevolver.config.loss_modes import BOOSTED, MODES, PENALISING
from agentevolver.trainer.loss import finish_metrics, selective_ppo_loss
from tests.agentevolver.trainer.test_loss import AGGREGATIONS, HIGH, OFF, Batch, batches, config

BETA = 0.3  # of dro's penalty, and of kl_cov's
TOKENS = 3000


def options(mode, aggregation="token-sum"):
    chosen = config(mode, aggregation)
    policy = PolicyLossConfig(
        loss_mode=mode, dro_beta=BETA, ppo_kl_coef=BETA, kl_cov_ratio=0.2, clip_cov_ratio=0.2, clip_cov_lb=0.0
    )
    object.__setattr__(chosen, "policy_loss", policy)
    return chosen


def gradients(batch, chosen):
    return batch.run(partial(selective_ppo_loss, chosen))[1]


def each_token(batch):
    """Advantage (0 for a token that is not trained on), log-ratio and importance weight of every token, in the order of
    the gradient."""
    rows = [
        zip(row["advantage"], row["mask"], row["log_ratio"], range(len(row["mask"])), strict=True) for row in batch.rows
    ]
    weighted = "rollout_is_weights" in batch.data
    tokens = [(a * m, r * m, 1.0 + 0.25 * (t % 3) if weighted else 1.0) for row in rows for a, m, r, t in row]
    return torch.tensor(tokens).T


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_every_token_is_pulled_the_way_its_own_advantage_says(mode, data):
    batch = data.draw(batches())
    if mode not in BOOSTED:
        batch.data["clip_ratio_high"] = torch.full((len(batch.rows),), HIGH)
    advantage, log_ratio, weight = each_token(batch)
    gradient = gradients(
        batch, options(mode, "token-sum" if mode in PENALISING else data.draw(st.sampled_from(AGGREGATIONS)))
    )
    pulls = [gradient]
    if mode == "dro":
        pulls = [gradient - BETA * log_ratio * weight]
    elif mode == "kl_cov":  # the penalty is on some of the tokens
        pulls.append(gradient - BETA * log_ratio.sign() * weight)
    fitting = torch.stack([pull * advantage <= 1e-6 for pull in pulls]).any(0)
    assert fitting.all(), (mode, gradient, advantage)
    assert not gradient[advantage == 0].any() or mode in PENALISING


@pytest.mark.parametrize("mode", MODES)
def test_near_the_sampling_policy_every_token_is_pulled(mode):
    """Step advantages of one row that differ, of either sign: at the first optimiser step nothing is clipped."""
    rows = [{"log_ratio": [0.0] * 4, "advantage": [3.0, -3.0, 0.5, -1.0], "mask": [1, 1, 1, 1]}] * 2
    batch = Batch(rows, [0, 0], [HIGH, HIGH])
    gradient = gradients(batch, options(mode))
    pulled = gradient != 0
    assert (gradient.sign() == -each_token(batch)[0].sign())[pulled].all()
    assert (
        int(pulled.sum()) == 8 if mode != "clip_cov" else int(pulled.sum()) >= 7
    )  # one token in five of eight is let go


@pytest.mark.parametrize("mode", ["trajectory", "gspo"])
@pytest.mark.parametrize("drift", [0.002, -0.002])
def test_length_alone_takes_no_row_out_of_the_clip(mode, drift):
    """3,000 tokens that all moved by .002 the same way: their product is e^6 = 403 or e^-6, their ratio is 1.002 or
    0.998."""
    row = {"log_ratio": [drift] * TOKENS, "advantage": [1.0, -1.0] * (TOKENS // 2), "mask": [1] * TOKENS}
    batch = Batch([row], [1], [HIGH])
    _, gradient, metrics = batch.run(partial(selective_ppo_loss, options(mode)))
    assert torch.allclose(-gradient, each_token(batch)[0] * math.exp(drift), rtol=1e-4)
    done = finish_metrics({name: metric.aggregate() for name, metric in metrics.items() if name.endswith("_sum")})
    assert (
        done["actor/guided/ratio"] == pytest.approx(math.exp(drift), rel=1e-5) and done["actor/guided/clipfrac"] == 0.0
    )
    assert metrics["actor/pg_clipfrac"].aggregate() == 0.0 and metrics["actor/ppo_kl"].aggregate() == pytest.approx(
        -drift, rel=1e-3
    )


@pytest.mark.parametrize("mode", BOOSTED)
def test_the_wider_clip_lets_a_guided_row_go_on_where_an_unguided_one_stops(mode):
    row = {"log_ratio": [math.log(1.4)] * 3, "advantage": [1.0, 2.0, -1.0], "mask": [1, 1, 1]}
    gradient = gradients(Batch([row, row], [1, 0], [OFF, HIGH]), options(mode)).reshape(2, 3)
    if mode == "cispo":  # it clips the weight of a token, not its gradient
        assert (-gradient).tolist() == [pytest.approx([1.4, 2.8, -1.28]), pytest.approx([1.28, 2.56, -1.28])]
    else:
        assert (-gradient).tolist() == [pytest.approx([1.4, 2.8, -1.4]), pytest.approx([0.0, 0.0, -1.4])]
