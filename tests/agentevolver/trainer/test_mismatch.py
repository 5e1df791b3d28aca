import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_queue import KVBatchMeta

from agentevolver.trainer.mismatch import MAX, MEAN, STALE, MismatchWatch, difference, of_batch
from tests.agentevolver.trainer.memory_queue import Queue

LOG_PROB = st.floats(-20.0, 0.0, width=32)
ROW = st.lists(st.tuples(LOG_PROB, LOG_PROB, st.booleans()), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=4))
def test_mean_and_maximum_are_over_the_sampled_tokens_of_all_rows(rows):
    sampled, trained, masks = ([torch.tensor([token[i] for token in row]) for row in rows] for i in range(3))
    gaps = [abs(a - b) for row in rows for a, b, mask in row if mask]
    found = difference(sampled, trained, [mask.long() for mask in masks])
    if gaps:
        assert found == {MEAN: pytest.approx(sum(gaps) / len(gaps)), MAX: pytest.approx(max(gaps))}
    else:
        assert found == {}


def test_rows_of_earlier_weights_are_told_apart_from_those_of_the_trainers_own(monkeypatch):
    queue = Queue()
    for row, (sampled, trained) in enumerate(((-1.0, -1.25), (-2.0, -2.0), (-3.0, -5.0))):
        columns = {"rollout_log_probs": sampled, "old_log_probs": trained, "response_mask": 1}
        queue.rows[f"g_{row}_0"] = {name: torch.tensor([value]) for name, value in columns.items()}
    monkeypatch.setattr("agentevolver.trainer.mismatch.tq", queue)
    tags = [{"min_global_steps": version} for version in (6, 6, 5)]
    batch = KVBatchMeta(partition_id="train", keys=[f"g_{row}_0" for row in range(3)], tags=tags)
    assert of_batch(batch, [], 6) == {MEAN: 0.125, MAX: 0.25, STALE: 2.0}
    assert of_batch(batch, [], 7) == {STALE: 0.75}, "nothing is compared that no longer is the trainer's"


def test_the_warning_comes_above_the_bound_and_again_when_the_number_has_doubled(caplog):
    watch = MismatchWatch(0.1)
    with caplog.at_level(logging.WARNING):
        for mean in (0.05, 0.1, 0.2, 0.3, 0.41, 0.5):
            watch.look({MEAN: mean, MAX: 1.0})
    assert [record.args[0] for record in caplog.records] == [0.2, 0.41]
    assert "rollout_is=token" in caplog.records[0].getMessage()
