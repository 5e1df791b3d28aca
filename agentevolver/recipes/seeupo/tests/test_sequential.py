"""Masks and ratios of an update of one turn after the other, by hand; the update on rows in a queue."""

import math
from types import SimpleNamespace

import pytest
import torch
import transfer_queue as tq
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from transfer_queue import KVBatchMeta

from agentevolver.recipes.seeupo import update as sequential
from agentevolver.recipes.seeupo.update import (
    TurnUpdates,
    merged,
    next_running,
    turn_masks,
    turn_ratios,
)
from agentevolver.recipes.seeupo.worker import hold_learning_rate
from agentevolver.trainer.actor_update import Update

LN = math.log


def test_ratio_and_running_ratio_by_hand_of_two_trajectories_and_three_turns():
    """Turn 2: exp((.15 + .05) / 2), and .8 of exp(-.7). Turn 1: 1.2 of exp(.3), and 1.05. Turn 0 sees both, held."""
    step_ids = [torch.tensor([0, 1, -1, 2, 2]), torch.tensor([0, 0, 1, 2])]
    masks = [torch.tensor([1, 1, 0, 1, 1]), torch.tensor([1, 1, 1, 1])]
    running = torch.ones(2, dtype=torch.float64)
    last = turn_masks(masks, step_ids, 2)
    assert [mask.tolist() for mask in last] == [[0, 0, 0, 1, 1], [0, 0, 0, 1]]
    moved = [torch.tensor([9.0, 9.0, 9.0, 0.15, 0.05]), torch.tensor([9.0, 9.0, 9.0, -0.7])]
    ratios = turn_ratios(moved, last, [0, 1], 2, clip=0.2)
    assert ratios.tolist() == pytest.approx([math.exp(0.1), 0.8])
    running = next_running(running, ratios, 0.2)
    middle = turn_masks(masks, step_ids, 1)
    moved = [torch.tensor([0.0, 0.3, 5.0, 5.0, 5.0]), torch.tensor([0.0, 0.0, LN(1.05), 5.0])]
    running = next_running(running, turn_ratios(moved, middle, [0, 1], 2, clip=0.2), 0.2)
    assert running.tolist() == pytest.approx([1.2, 0.84])


def test_rows_of_one_trajectory_share_a_ratio_and_one_without_the_turn_has_ratio_1():
    masks = [torch.tensor([1.0, 0.0]), torch.tensor([1.0]), torch.tensor([0.0])]
    moved = [torch.tensor([0.1, 7.0]), torch.tensor([0.3]), torch.tensor([5.0])]
    assert turn_ratios(moved, masks, [0, 0, 1], 3, clip=0.5).tolist() == pytest.approx([math.exp(0.2), 1.0, 1.0])


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.floats(-50, 50), min_size=1, max_size=4), min_size=1, max_size=4),
    st.floats(0.01, 0.9),
    st.floats(0.5, 1.5),
)
def test_no_ratio_leaves_its_bounds(rows, clip, before):
    moved = [torch.tensor(row) for row in rows]
    ratios = turn_ratios(moved, [torch.ones(len(row)) for row in rows], range(len(rows)), len(rows), clip)
    running = next_running(torch.full((len(rows),), before, dtype=torch.float64), ratios, clip)
    for values in (ratios, running):
        assert bool(((values >= 1 - clip - 1e-12) & (values <= 1 + clip + 1e-12)).all())


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=12), st.integers(0, 1))
def test_masks_of_the_turns_are_the_row_s_mask_cut_in_pieces(ids, flag):
    step_ids = torch.tensor(ids)
    mask = (step_ids >= 0).long() * flag
    pieces = [turn_masks([mask], [step_ids], turn)[0] for turn in range(5)]
    assert torch.equal(sum(pieces), mask)


def test_metrics_of_several_updates():
    found = [
        {"actor/lr": 0.2, "actor/grad_norm": 1.0, "actor/optimiser_steps": 1.0, "actor/guided_tokens_token_sum": 3.0},
        {"actor/lr": 0.1, "actor/grad_norm": 3.0, "actor/optimiser_steps": 1.0, "actor/guided_tokens_token_sum": 4.0},
    ]
    assert merged(found) == {
        "actor/lr": 0.1, "actor/grad_norm": 2.0, "actor/optimiser_steps": 2.0, "actor/guided_tokens_token_sum": 7.0,
    }  # fmt: skip
    assert merged([]) == {}


def test_the_schedule_is_held_and_goes_on():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=1.0)

    class Engine:
        lr_scheduler = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)

        def lr_scheduler_step(self):
            self.lr_scheduler.step()
            return self.lr_scheduler.get_last_lr()[0]

    engine = Engine()
    optimiser.step()
    hold_learning_rate(engine, True)
    assert [engine.lr_scheduler_step() for _ in range(3)] == [1.0, 1.0, 1.0]
    hold_learning_rate(engine, False)
    assert engine.lr_scheduler_step() == 0.5


class Queue:
    """Rows by key, as TransferQueue keeps them."""

    def __init__(self, rows):
        self.rows = rows

    def get(self, keys, partition_id, select_fields):
        columns = {}
        for name in select_fields:
            values = [self.rows[key][name] for key in keys]
            nested = isinstance(values[0], torch.Tensor)
            columns[name] = (
                torch.nested.as_nested_tensor(values, layout=torch.jagged) if nested else NonTensorStack(*values)
            )
        return TensorDict(columns, batch_size=[len(keys)])

    def put(self, keys, partition_id, fields):
        for name in fields.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value


class Workers:
    """Records what an update was given; each moves every log-prob by `moves`."""

    def __init__(self, queue, moves, fails_at=None):
        self.queue, self.moves, self.fails_at = queue, moves, fails_at
        self.updates, self.held, self.now = [], [], 0.0

    def hold_learning_rate(self, held):
        self.held.append(held)

    def update_actor(self, batch):
        if len(self.updates) == self.fails_at:
            raise RuntimeError("the worker died")
        self.updates.append(
            {
                key: (self.queue.rows[key]["response_mask"].tolist(), self.queue.rows[key]["advantages"].tolist())
                for key in batch.keys
            }
        )
        self.now += self.moves
        return {"metrics": {"grad_norm": [1.0], "lr": 0.1, "mfu": [0.0]}}

    def compute_log_prob(self, batch):
        for key in batch.keys:
            row = self.queue.rows[key]
            response = row["old_log_probs"] + self.now
            self.queue.rows[key]["log_probs"] = torch.cat([torch.zeros(2), response, torch.zeros(1)])


@pytest.fixture
def rows():
    def row(ids, advantage):
        mask = torch.tensor([int(i >= 0) for i in ids])
        return {
            "response_mask": mask, "loss_mask": mask, "advantages": mask * advantage,
            "old_log_probs": -torch.ones(len(ids)), "extra_fields": {"step_ids": ids},
        }  # fmt: skip

    return {
        "step_1_g_0_0": row([0, -1, 1, 1], 1.0),
        "step_1_g_1_0": row([0, 0], -2.0),
        "padding": row([-1, -1], 0.0),
    }


def update(monkeypatch, rows, workers):
    queue = workers.queue
    monkeypatch.setattr(
        tq, "kv_batch_get", lambda keys, partition_id, select_fields: queue.get(keys, "p", select_fields)
    )
    monkeypatch.setattr(
        tq, "kv_batch_put", lambda keys, partition_id, fields, tags=None: queue.put(keys, partition_id, fields)
    )
    actor = SimpleNamespace(calculate_entropy=False, entropy_coeff=0.0, ppo_epochs=1, data_loader_seed=1)
    batch = KVBatchMeta(keys=list(rows), tags=[{} for _ in rows], partition_id="p", fields=["response_mask"])
    sizes = Update(actor, steps=1, ranks=1, multiple=1, temperature=1.0, step=0)
    return TurnUpdates(0.2).update_actor(workers, batch, [0, 1], sizes)


def test_an_update_sees_one_turn_s_tokens_and_advantages_by_the_running_ratio(monkeypatch, rows):
    workers = Workers(Queue(rows), moves=0.1)
    before = {key: (row["response_mask"].tolist(), row["advantages"].tolist()) for key, row in rows.items()}
    metrics = update(monkeypatch, rows, workers)
    moved = math.exp(0.1)
    first, second = workers.updates
    assert first == {"step_1_g_0_0": ([0, 0, 1, 1], [1.0, 0.0, 1.0, 1.0])}  # the other has no second turn
    assert second["step_1_g_0_0"] == ([1, 0, 0, 0], pytest.approx([moved, 0.0, moved, moved]))
    assert second["step_1_g_1_0"] == ([1, 1], [-2.0, -2.0])
    assert workers.held == [True, False, False]
    assert metrics["actor/turns"] == 2.0
    assert metrics["actor/optimiser_steps"] == 2.0
    assert metrics["actor/turn_ratio/max"] == pytest.approx(moved)
    assert {key: (row["response_mask"].tolist(), row["advantages"].tolist()) for key, row in rows.items()} == before


def test_masks_and_advantages_are_back_and_the_schedule_goes_on_when_a_worker_dies(monkeypatch, rows):
    workers = Workers(Queue(rows), moves=0.1, fails_at=1)
    before = {key: (row["response_mask"].tolist(), row["advantages"].tolist()) for key, row in rows.items()}
    with pytest.raises(RuntimeError, match="died"):
        update(monkeypatch, rows, workers)
    assert {key: (row["response_mask"].tolist(), row["advantages"].tolist()) for key, row in rows.items()} == before
    assert workers.held[-1] is False


def test_rows_are_filled_up_to_what_ranks_and_micro_batches_divide():
    batch = KVBatchMeta(keys=["a", "b", "c", "d"], tags=[{}, {}, {}, {}], partition_id="p")
    assert sequential._part(batch, [2], 2).keys == ["c", "a"]
    assert sequential._part(batch, [2, 3], 2).keys == ["c", "d"]
    assert sequential._part(batch, [0, 1, 2], 4).keys == ["a", "b", "c", "d"]
