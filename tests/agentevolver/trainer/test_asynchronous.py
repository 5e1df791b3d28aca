from types import SimpleNamespace

import torch
from transfer_queue import KVBatchMeta

from agentevolver.trainer import asynchronous, roll_out
from agentevolver.trainer.asynchronous import Asynchronous
from tests.agentevolver.trainer.memory_queue import Queue
from tests.trajectories import trajectory


class Groups:
    """TransferQueue's keys and tags; what runs is finished when it is looked at for the third time."""

    def __init__(self, tags):
        self.tags, self.looked = tags, 0

    def kv_list(self, partition_id):
        self.looked += 1
        for tag in self.tags.values():
            if tag.get("status") == "running" and self.looked > 2:
                tag["status"] = "finished"
        return {partition_id: dict(self.tags)}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.tags[key]


def test_scouts_and_the_warm_start_take_their_own_groups_and_leave_those_of_training(monkeypatch):
    training = {
        "000001-00000-t": {"is_prompt": True, "status": "finished", "global_steps": 1},
        "000001-00000-t_0_0": {"status": "success"},
    }
    scouts = {
        "000002-00000-s": {"is_prompt": True, "status": "running", "global_steps": 2},
        "000002-00000-s_1_0": {"status": "success"},
        "000002-00000-s_0_0": {"status": "success"},
    }
    queue = Groups({**training, **scouts})
    monkeypatch.setattr(roll_out, "tq", queue)
    found = roll_out.gathered(["000002-00000-s"], "train")
    assert queue.looked == 3, "they were waited for"
    assert found.keys == ["000002-00000-s_0_0", "000002-00000-s_1_0"]
    queue.kv_clear(found.keys, "train")
    assert queue.tags == training


def test_a_row_that_lost_its_guidance_counts_in_full_and_others_by_how_likely_they_became(monkeypatch):
    queue = Queue()
    queue.rows = {f"g_{i}_0": {"rollout_is_weights": torch.tensor([0.5, 2.0])} for i in range(2)}
    monkeypatch.setattr(asynchronous, "tq", queue)
    guided = {"guidance": {"text": "tip", "injected": "tip", "keep": False}}
    told = [trajectory(group_id="g", rollout_id=0), trajectory(group_id="g", rollout_id=1, **guided)]
    assert [one.stripped for one in told] == [False, True]
    rows = KVBatchMeta(partition_id="train", keys=["g_0_0", "g_1_0"], tags=[{}, {}])
    Asynchronous._keep_stripped(SimpleNamespace(_trajectories=told), rows)
    assert [row["rollout_is_weights"].tolist() for row in queue.rows.values()] == [[0.5, 2.0], [1.0, 1.0]]
