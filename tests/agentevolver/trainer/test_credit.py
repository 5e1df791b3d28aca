import torch
from tensordict import TensorDict

from agentevolver.trainer import batch as rows
from agentevolver.trainer.batch import scale_synthetic
from tests.agentevolver.trainer.memory_queue import Queue, column
from tests.trajectories import trajectory


def test_the_returns_that_a_critic_learns_are_not_scaled(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(rows, "tq", queue)
    made = {name: column([torch.tensor([2.0, value])]) for name, value in (("advantages", 4.0), ("returns", 6.0))}
    batch = queue.kv_batch_put(["g_0_0"], "train", TensorDict(made, batch_size=[1]))
    scale_synthetic(batch, [trajectory(group_id="g", task={"metadata": {"advantage_scale": 0.5}})])
    assert {name: row.tolist() for name, row in queue.rows["g_0_0"].items()} == {
        "advantages": [1.0, 2.0], "returns": [2.0, 6.0],
    }  # fmt: skip
