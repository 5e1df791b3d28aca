"""Rollouts outside of a training batch, for the warm start of the experience pool and for its scouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from agentevolver.rollout.rows import group_name, row_order
from agentevolver.trainer.batch import rollouts_of
from agentevolver.trainer.polling import interval_after
from agentevolver.types import RowKey, Task, Trajectory
from task_manager.dataset import ROLLOUTS_KEY, row_of


def roll_out(
    manager: Any,
    name: str,
    tasks: Sequence[Task],
    n: int,
    *,
    seed: int,
    step: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Trajectory]:
    """Roll out each task n times with the current policy, sampled as in training.

    `name` is part of the group ids, `step` is the next training step, and `meanwhile` is called during the wait.
    """
    rows = collate_fn([{**row_of(task, index, task.env_type), ROLLOUTS_KEY: n} for index, task in enumerate(tasks)])
    rows["uid"] = np.array(
        [group_name(seed, name, step, place, task.task_id) for place, task in enumerate(tasks)], dtype=object
    )
    prompts = tu.get_tensordict(rows)
    tu.assign_non_tensor_data(prompts, "global_steps", step)
    tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in tasks]
    tq.kv_batch_put(keys=list(rows["uid"]), partition_id="train", tags=tags)
    manager.generate_sequences(prompts)
    batch = gathered(list(rows["uid"]), "train", meanwhile)
    trajectories = rollouts_of(batch)[1]
    tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
    return trajectories


def gathered(groups: Sequence[str], partition_id: str, meanwhile: Callable[[], None] = lambda: None) -> KVBatchMeta:
    """Wait until these groups are rolled out, then remove the group entries from the queue and return their rows."""
    wanted = set(groups)
    while True:
        began = time.monotonic()
        tags = (tq.kv_list(partition_id) or {}).get(partition_id, {})
        if all(tags.get(group, {}).get("status") in ("finished", "failure") for group in groups):
            break
        pause = interval_after(time.monotonic() - began)
        meanwhile()
        time.sleep(pause)
    tq.kv_clear(keys=list(groups), partition_id=partition_id)
    rows = {
        key: tag for key, tag in tags.items() if not tag.get("is_prompt", False) and RowKey.of(key).group_id in wanted
    }
    batch = KVBatchMeta(partition_id=partition_id, keys=list(rows), tags=list(rows.values()))
    batch.reorder(row_order(batch.keys))
    return batch
