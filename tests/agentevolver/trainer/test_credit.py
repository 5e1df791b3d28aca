"""Step credit on its way through the trainer: labels become advantages of the tokens of their steps, and stand in the
records."""

import pytest
import torch
from tensordict import TensorDict

from advantage_processor.pipeline import Processor, assign
from advantage_processor.settings import AttributionSettings
from agentevolver.trainer import batch as rows
from agentevolver.trainer.batch import scale_synthetic, synthetic_scales
from agentevolver.types import Attribution, LabelStatus
from tests.agentevolver.trainer.memory_queue import Queue, column
from tests.trajectories import trajectory


def record(rollout, score, good=None):
    attribution = (
        Attribution.off("-")
        if good is None
        else Attribution(LabelStatus.LABELLED, good=good, analyses=("",) * len(good))
    )
    return trajectory(
        group_id="g",
        rollout_id=rollout,
        steps=[{"index": 0}, {"index": 1}],
        outcome=None if score is None else {"score": score, "success": score >= 1},
        attribution=attribution.to_dict(),
    )


IDS = [[0, 0, -1, 1], [0, -1, 1], [0, -1, -1, -1, 1]]
SETTINGS = AttributionSettings(enable=True, adca_grpo={"alpha": 0.5})


def test_a_good_step_of_a_success_gets_more_than_a_bad_one_and_observations_get_nothing():
    records = [record(0, 1.0, (True, False)), record(1, 0.0, (False, True)), record(2, 0.0, (False, False))]
    advantages, metrics = assign(Processor(SETTINGS), 1, records, ["g_0_0", "g_1_0", "g_2_0"], IDS)
    assert [row.shape[0] for row in advantages] == [4, 3, 5]
    first = advantages[0].tolist()
    assert first[0] == first[1] > first[3] > 0 and first[2] == 0
    assert advantages[2][0] < 0 and advantages[2][1:4].abs().sum() == 0
    assert metrics["prm/labelled_rate"] == 1.0


def test_what_was_made_of_a_trajectory_stands_in_its_record_and_not_in_one_that_failed():
    records = [record(0, 1.0, (True, True)), record(1, 0.0, (False, False)), record(2, None)]
    advantages, _ = assign(Processor(SETTINGS), 1, records, ["g_0_0", "g_1_0"], IDS[:2])
    assert list(records[0].credit.advantages) == pytest.approx(
        [advantages[0][0].item(), advantages[0][3].item()], abs=1e-5
    )
    assert records[2].credit is None


def test_without_labels_every_step_gets_its_trajectorys_outcome():
    records = [record(0, 1.0), record(1, 0.0), record(2, 0.0)]
    advantages, _ = assign(Processor(SETTINGS), 1, records, ["g_0_0", "g_1_0", "g_2_0"], IDS)
    scores = torch.tensor([1.0, 0.0, 0.0])
    outcomes = (scores - scores.mean()) / scores.std(correction=0)
    for row, ids, expected in zip(advantages, IDS, outcomes, strict=True):
        assert torch.allclose(row, torch.tensor([expected if i >= 0 else 0.0 for i in ids]), atol=1e-5)


def test_a_row_of_no_trajectory_is_refused():
    with pytest.raises(ValueError, match="g_7_0 belongs to no trajectory"):
        assign(Processor(SETTINGS), 1, [record(0, 1.0)], ["g_7_0"], [[0]])


def test_each_row_has_the_scale_of_its_own_task_and_one_where_none_is_told():
    told = [
        trajectory(group_id="g", task={"metadata": {"advantage_scale": 0.5}}),
        trajectory(group_id="h", task={"metadata": {}}),
    ]
    assert synthetic_scales(told, ["h_0_0", "g_0_0", "g_0_1"]) == [1.0, 0.5, 0.5]
    with pytest.raises(KeyError):
        synthetic_scales(told, ["g_7_0"])


def test_the_returns_that_a_critic_learns_are_not_scaled(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(rows, "tq", queue)
    made = {name: column([torch.tensor([2.0, value])]) for name, value in (("advantages", 4.0), ("returns", 6.0))}
    batch = queue.kv_batch_put(["g_0_0"], "train", TensorDict(made, batch_size=[1]))
    scale_synthetic(batch, [trajectory(group_id="g", task={"metadata": {"advantage_scale": 0.5}})])
    assert {name: row.tolist() for name, row in queue.rows["g_0_0"].items()} == {
        "advantages": [1.0, 2.0], "returns": [2.0, 6.0],
    }  # fmt: skip
