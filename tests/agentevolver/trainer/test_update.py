import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric

from agentevolver.trainer import update
from agentevolver.trainer.loss import ROWS_COLUMN, selective_ppo_loss
from agentevolver.trainer.update import arrange, mini_batches, required_multiple
from tests.agentevolver.trainer.memory_queue import Queue
from tests.agentevolver.trainer.test_loss import AGGREGATIONS, BOOSTED, Batch, batches, config, slow_loss

WITHDRAWN = {"log_ratio": [0.5, -0.5, 0.1], "advantage": [2.0, -2.0, 1.0], "mask": [0, 0, 0]}
HORIZON = 11


def cut(order, ranks, steps):
    """The mini-batches as verl cuts them: an equal part of the rows a rank, and of that an equal part a step."""
    share = len(order) // ranks
    size = share // steps
    return [
        [order[rank * share + step * size + i] for rank in range(ranks) for i in range(size)] for step in range(steps)
    ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_rows_that_count_are_spread_evenly_and_stay_on_their_rank(data):
    ranks, steps, size = (data.draw(st.integers(1, 4)) for _ in range(3))
    n = ranks * steps * size
    counts = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    order, numbers = mini_batches(counts, ranks, steps, data.draw(st.none() | st.integers(0, 5)))
    assert sorted(order) == list(range(n))
    share = n // ranks
    assert all(old // share == new // share for new, old in enumerate(order))
    held = [sum(counts[i] for i in rows) for rows in cut(order, ranks, steps)]
    assert max(held) - min(held) <= 1
    assert cut(numbers, ranks, steps) == [[count] * (ranks * size) for count in held]


def test_where_all_rows_count_their_order_is_verls():
    assert mini_batches([True] * 12, 2, 3)[0] == list(range(12))
    assert mini_batches([True] * 12, 2, 3, seed=1)[0] != list(range(12))
    assert mini_batches([True] * 12, 2, 3, seed=1) == mini_batches([True] * 12, 2, 3, seed=1)


def test_what_a_batch_must_divide_by():
    fitting = OmegaConf.create({
        "actor": {"use_dynamic_bsz": True, "ppo_micro_batch_size_per_gpu": 5},
        "rollout": {"log_prob_use_dynamic_bsz": True, "log_prob_micro_batch_size_per_gpu": None},
        "ref": {"log_prob_use_dynamic_bsz": True, "log_prob_micro_batch_size_per_gpu": None},
    })  # fmt: skip
    assert required_multiple(fitting, 4, 3) == 12
    fitting.actor.use_dynamic_bsz = False
    assert required_multiple(fitting, 4, 3) == 60
    fitting.rollout = {"log_prob_use_dynamic_bsz": False, "log_prob_micro_batch_size_per_gpu": 2}
    assert required_multiple(fitting, 4, 3) == 120


def counted_config(mode, aggregation):
    return config(mode, aggregation, loss_scale_factor=HORIZON)


def with_rows(batch, number):
    batch.data[ROWS_COLUMN] = torch.full((len(batch.rows),), float(number))
    return batch


def reference(batch, mode, aggregation):
    """The slow loss of the rows that count alone."""
    if aggregation == "seq-mean-token-sum-norm":
        return slow_loss(batch, mode, "seq-mean-token-sum") / HORIZON
    return slow_loss(batch, mode, aggregation)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", BOOSTED)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_withdrawn_rows_change_neither_loss_nor_gradient(mode, data):
    aggregation, alone = (
        data.draw(st.sampled_from(AGGREGATIONS)),
        data.draw(batches(weights=False, reference=True, entropy=True)),
    )
    extra = data.draw(st.integers(1, 4))
    mixed = Batch(
        [*alone.rows, *[WITHDRAWN] * extra],
        [*alone.guided, *[False] * extra],
        [*alone.bounds, *[0.28] * extra],
        reference=True,
        entropy=True,
    )
    loss = partial(selective_ppo_loss, counted_config(mode, aggregation))
    value, gradient, _ = with_rows(mixed, len(alone.rows)).run(loss)
    assert value == pytest.approx(reference(alone, mode, aggregation), rel=2e-4, abs=2e-5)
    tokens = len(alone.log_prob)
    assert not gradient[tokens:].any()
    full = partial(
        selective_ppo_loss, config(mode, aggregation, loss_scale_factor=HORIZON, use_kl_loss=True, entropy_coeff=0.01)
    )
    values = []
    for batch in (mixed, alone):
        batch.log_prob.grad = None
        values.append(with_rows(batch, len(alone.rows)).run(full))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-5, abs=1e-6)
    assert torch.allclose(values[0][1][:tokens], values[1][1], atol=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("mode", BOOSTED)
def test_a_mini_batch_of_withdrawn_rows_alone_has_loss_zero(mode, aggregation):
    batch = with_rows(Batch([WITHDRAWN] * 3, [0] * 3, [0.28] * 3, reference=True, entropy=True), 0)
    chosen = config(mode, aggregation, loss_scale_factor=HORIZON, use_kl_loss=True, entropy_coeff=0.01)
    value, gradient, metrics = batch.run(partial(selective_ppo_loss, chosen))
    assert value == 0.0 and not gradient.any()
    assert all(math.isfinite(metric.aggregate()) for metric in metrics.values() if isinstance(metric, Metric))


def test_micro_batches_of_two_ranks_add_up_to_the_mean_over_rows_that_count():
    rows = [{"log_ratio": [0.1, 0.2], "advantage": [1.0, -1.0], "mask": [1, 1]}, WITHDRAWN, WITHDRAWN, WITHDRAWN]
    rows += [
        {"log_ratio": [0.3], "advantage": [2.0], "mask": [1]},
        {"log_ratio": [-0.1], "advantage": [-1.0], "mask": [1]},
    ]
    loss = partial(selective_ppo_loss, config("vanilla", "seq-mean-token-mean"))
    parts = []
    for piece in (rows[:2], rows[2:3], rows[3:5], rows[5:]):  # two micro-batches of each of two ranks
        batch = with_rows(Batch(piece, dp_size=2), 3)
        tu.assign_non_tensor(batch.data, batch_num_tokens=4, global_batch_size=6)
        parts.append(batch.run(loss)[0])
    expected = slow_loss(Batch([row for row in rows if row is not WITHDRAWN]), "vanilla", "seq-mean-token-mean")
    assert sum(parts) / 2 == pytest.approx(expected, rel=1e-5)


def test_a_batch_is_arranged_by_what_is_trained_on(monkeypatch):
    """Padding and withdrawn rows do not count, nor does a row of which rejection left nothing."""
    masks = {"a": [1, 0], "b": [0, 0], "c": [1], "pad": [1], "d": [0, 1], "e": [1]}
    queue = Queue()
    queue.rows = {key: {"response_mask": torch.tensor(mask)} for key, mask in masks.items()}
    monkeypatch.setattr(update, "tq", queue)
    tags = [{"is_padding": key == "pad"} for key in masks]
    batch = KVBatchMeta(keys=list(masks), tags=tags, partition_id="train", fields=["advantages"])
    arrange(batch, [0, 1, 2, 4, 5], ranks=1, steps=2)
    assert batch.keys == ["a", "c", "b", "d", "e", "pad"] and batch.tags[-1]["is_padding"]
    assert {key: float(row[ROWS_COLUMN]) for key, row in queue.rows.items()} == dict.fromkeys(masks, 2.0)
    assert batch.fields == ["advantages", ROWS_COLUMN]
