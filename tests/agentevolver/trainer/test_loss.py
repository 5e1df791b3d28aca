import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.config import FSDPActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from agentevolver.config.loss_modes import BOOSTED
from agentevolver.trainer.loss import finish_metrics, selective_ppo_loss
from agentevolver.trainer.mismatch import MEAN

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LOW, HIGH, OFF, DUAL = 0.2, 0.28, 0.6, 3.0


def config(mode="vanilla", aggregation="token-mean", **extra):
    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=LOW, clip_ratio_high=HIGH,
        clip_ratio_c=DUAL,
        loss_agg_mode=aggregation, policy_loss=PolicyLossConfig(loss_mode=mode), **extra,
    )  # fmt: skip


def nested(rows, dtype=torch.float32):
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


class Batch:
    """Rows of tokens: log-ratios, advantages and masks, and what else a row says."""

    def __init__(
        self, rows, guided=None, bounds=None, dp_size=1, weights=False, reference=False, entropy=False, prompt=3
    ):
        self.rows = rows
        self.guided, self.bounds = guided, bounds
        lengths = [len(row["log_ratio"]) for row in rows]
        old = [[-1.0 - 0.1 * t for t in range(n)] for n in lengths]
        self.log_probs = [
            [o + r for o, r in zip(olds, row["log_ratio"], strict=True)] for olds, row in zip(old, rows, strict=True)
        ]
        columns = {
            "prompts": nested([[1] * prompt] * len(rows), torch.int64),
            "responses": nested([[2] * n for n in lengths], torch.int64),
            "response_mask": nested([row["mask"] for row in rows], torch.int64),
            "old_log_probs": nested(old),
            "advantages": nested([row["advantage"] for row in rows]),
        }
        if weights:
            columns["rollout_is_weights"] = nested([[1.0 + 0.25 * (t % 3) for t in range(n)] for n in lengths])
        if reference:
            columns["ref_log_prob"] = nested([[o - 0.3 for o in olds] for olds in old])
        if guided is not None:
            columns["guided"] = torch.tensor(guided, dtype=torch.float32)
        if bounds is not None:
            columns["clip_ratio_high"] = torch.tensor(bounds, dtype=torch.float32)
        self.data = TensorDict(columns, batch_size=len(rows))
        tokens = int(sum(sum(row["mask"]) for row in rows))
        tu.assign_non_tensor(
            self.data,
            dp_size=dp_size,
            batch_num_tokens=tokens,
            global_batch_size=len(rows),
            max_response_len=max(lengths),
        )
        self.log_prob = torch.tensor([p for row in self.log_probs for p in row], requires_grad=True)
        self.entropy = entropy
        self._lengths, self._prompt = lengths, prompt

    def output(self):
        # The model's output at a position belongs to the token after it.
        pieces, start = [], 0
        for n in self._lengths:
            zeros = torch.zeros(self._prompt - 1)
            pieces.append(torch.cat([zeros, self.log_prob[start : start + n], torch.zeros(1)]))
            start += n
        values = torch.nested.as_nested_tensor(pieces, layout=torch.jagged)
        return {"log_probs": values, "entropy": values * 0.5} if self.entropy else {"log_probs": values}

    def run(self, function):
        loss, metrics = function(model_output=self.output(), data=self.data)
        loss.backward()
        return loss.item(), self.log_prob.grad.clone(), metrics


def token_loss(ratio, advantage, high, dual=True):
    """The obvious formula for one token."""
    clipped = min(max(ratio, 1 - LOW), 1 + high)
    value = max(-advantage * ratio, -advantage * clipped)
    return min(value, -advantage * DUAL) if advantage < 0 and dual else value


def slow_loss(batch, mode, aggregation, dp_size=1):
    """One row, one token after the other."""
    rows = []
    for i, row in enumerate(batch.rows):
        seen = [r for r, m in zip(row["log_ratio"], row["mask"], strict=True) if m]
        values = []
        for t, (log_ratio, advantage, mask) in enumerate(
            zip(row["log_ratio"], row["advantage"], row["mask"], strict=True)
        ):
            high = batch.bounds[i] if batch.bounds is not None and advantage > 0 else HIGH
            if mode in ("trajectory", "gspo"):
                log_ratio = sum(seen) / max(len(seen), 1)
            ratio = math.exp(min(max(log_ratio, -20), 20))
            if mode == "cispo":
                value = -min(max(ratio, 1 - LOW), 1 + high) * advantage * batch.log_probs[i][t]
            else:
                value = token_loss(ratio, advantage, high, dual=mode != "gspo")
            if "rollout_is_weights" in batch.data:
                value *= 1.0 + 0.25 * (t % 3)
            values.append(value * mask)
        rows.append((sum(values), sum(row["mask"])))
    tokens, kept = sum(n for _, n in rows), [(value, n) for value, n in rows if n]
    width = max(len(row["mask"]) for row in batch.rows)
    return (
        dp_size
        * {
            "token-mean": sum(v for v, _ in rows) / tokens if tokens else 0.0,
            "token-sum": sum(v for v, _ in rows),
            "seq-mean-token-sum": sum(v for v, _ in kept) / len(rows),
            "seq-mean-token-mean": sum(v / n for v, n in kept) / len(rows),
            "seq-mean-token-sum-norm": sum(v for v, _ in kept) / len(rows) / width,
        }[aggregation]
    )


@st.composite
def batches(draw, **options):
    rows, guided, bounds = [], [], []
    for _ in range(draw(st.integers(1, 5))):
        n = draw(st.integers(1, 7))
        numbers = st.floats(-1.5, 1.5, allow_nan=False, width=32)
        row = {
            "log_ratio": draw(st.lists(numbers, min_size=n, max_size=n)),
            "advantage": draw(st.lists(st.floats(-2, 2, width=32), min_size=n, max_size=n)),
            "mask": [1, *draw(st.lists(st.integers(0, 1), min_size=n - 1, max_size=n - 1))],
        }
        rows.append(row)
        guided.append(draw(st.booleans()))
        bounds.append(OFF if guided[-1] and draw(st.booleans()) else HIGH)
    extra = {name: draw(st.booleans()) for name in ("weights",)}
    return Batch(rows, guided, bounds, **{**extra, **options})


@pytest.mark.thorough
@pytest.mark.parametrize("mode", BOOSTED)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_loss_is_the_slow_obvious_one(mode, data):
    batch, aggregation = data.draw(batches()), data.draw(st.sampled_from(AGGREGATIONS))
    value, _, _ = batch.run(partial(selective_ppo_loss, config(mode, aggregation)))
    assert value == pytest.approx(slow_loss(batch, mode, aggregation), rel=2e-4, abs=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["vanilla", "gspo", "cispo", "geo_mean", "clip_cov"])
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_without_a_boosted_sample_loss_and_gradient_are_verls_to_the_last_bit(mode, data):
    batch = data.draw(batches(reference=True, entropy=True))
    batch.data["clip_ratio_high"] = torch.full((len(batch.rows),), HIGH)
    aggregation = data.draw(st.sampled_from(AGGREGATIONS))
    torch.manual_seed(0)  # clip_cov draws the tokens that it clips
    ours = batch.run(partial(selective_ppo_loss, config(mode, aggregation, use_kl_loss=True, entropy_coeff=0.01)))
    batch.log_prob.grad = None
    torch.manual_seed(0)
    theirs = batch.run(partial(ppo_loss, config(mode, aggregation, use_kl_loss=True, entropy_coeff=0.01)))
    assert ours[0] == theirs[0] and torch.equal(ours[1], theirs[1])
    for key, metric in theirs[2].items():
        mine = ours[2][key]
        assert (mine.aggregate() == metric.aggregate()) if isinstance(metric, Metric) else mine == metric


def test_clip_fractions_of_guided_and_unguided_tokens_are_those_of_their_own_bounds():
    row = {"log_ratio": [math.log(1.4), math.log(1.7)], "advantage": [1.0, 1.0], "mask": [1, 1]}
    down = {"log_ratio": [math.log(0.5), math.log(0.9)], "advantage": [-1.0, -1.0], "mask": [1, 0]}
    _, _, metrics = Batch([row, row, down], [1, 0, 0], [OFF, HIGH, HIGH]).run(partial(selective_ppo_loss, config()))
    done = finish_metrics({key: metric.aggregate() for key, metric in metrics.items() if isinstance(metric, Metric)})
    assert done["actor/guided/clipfrac"] == 0.5
    assert done["actor/unguided/clipfrac"] == 1.0
    assert done["actor/guided/ratio"] == pytest.approx(1.55, rel=1e-5)
    assert not any(key.endswith("_sum") for key in done)


def test_the_distance_to_the_engines_log_probs_is_that_of_the_tokens_that_count():
    near = {"log_ratio": [0.1, -9.0], "advantage": [1.0, 1.0], "mask": [1, 0]}
    far = {"log_ratio": [-0.3, 0.5], "advantage": [1.0, 1.0], "mask": [1, 1]}
    for compares, found in ((True, pytest.approx(0.3, abs=1e-6)), (False, None)):
        _, _, metrics = Batch([near, far]).run(partial(selective_ppo_loss, config(), compares=compares))
        sums = {key: metric.aggregate() for key, metric in metrics.items() if isinstance(metric, Metric)}
        assert all(key.startswith("actor/") for key in sums), "others are renamed on the way to the trainer"
        assert finish_metrics(sums).get(MEAN) == found


def test_kl_holds_on_to_the_sampling_policy_if_asked_to():
    rows = [{"log_ratio": [0.4, -0.2], "advantage": [0.0, 0.0], "mask": [1, 1]}]
    for kl_to, distances in (("old", (0.4, -0.2)), ("reference", (0.7, 0.1))):
        batch = Batch(rows, [0], [HIGH], reference=True)
        before = batch.data["ref_log_prob"].values().clone()
        value, _, _ = batch.run(
            partial(selective_ppo_loss, config(use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type="kl"), kl_to=kl_to)
        )
        assert value == pytest.approx(sum(distances) / 2, abs=1e-5)
        assert torch.equal(batch.data["ref_log_prob"].values(), before)


@pytest.mark.parametrize("shape", ["flat", "column", "nested"])
def test_a_column_may_come_in_any_shape_with_one_number_a_row(shape):
    row = {"log_ratio": [0.5], "advantage": [1.0], "mask": [1]}
    batch = Batch([row, row], [1, 0], [OFF, HIGH])
    flat = batch.data["clip_ratio_high"]
    batch.data["clip_ratio_high"] = {"flat": flat, "column": flat[:, None], "nested": nested([[OFF], [HIGH]])}[shape]
    value, _, _ = batch.run(partial(selective_ppo_loss, config(aggregation="token-sum")))
    assert value == pytest.approx(-1.6 - 1.28, abs=1e-5)


def test_a_loss_mode_without_an_upper_clip_by_sample_is_refused_only_where_something_is_boosted():
    row = {"log_ratio": [0.5], "advantage": [1.0], "mask": [1]}
    with pytest.raises(ValueError, match="loss_mode = 'geo_mean' has no upper clip for each sample"):
        Batch([row], [1], [OFF]).run(partial(selective_ppo_loss, config("geo_mean")))
    Batch([row], [1], [HIGH]).run(partial(selective_ppo_loss, config("geo_mean")))
