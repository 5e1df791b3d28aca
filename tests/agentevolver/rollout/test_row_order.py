"""Names of groups and the order of rows: by what they are, not by when they came."""

import random

import numpy as np
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from agentevolver.rollout.rows import group_name, group_place
from agentevolver.trainer.batch import GroupNames, ordered
from agentevolver.trainer.validation import validation_order
from agentevolver.types import Task
from task_manager.dataset import row_of
from tests.trajectories import trajectory


def test_a_name_tells_place_and_step_and_belongs_to_the_run():
    name = group_name(1, "train", 12, 3, "note.k3.7")
    assert name.startswith("000012-00003-") and group_place(name) == 3 and "_" not in name
    others = [(2, "train", 12, 3, "note.k3.7"), (1, "warm_start", 12, 3, "note.k3.7"), (1, "train", 12, 3, "note.k3.8")]
    assert group_name(1, "train", 12, 3, "note.k3.7") == name and name not in {group_name(*other) for other in others}


def prompts_of(*tasks):
    rows = collate_fn([row_of(Task(task, "pocket"), index, "pocket") for index, task in enumerate(tasks)])
    rows["uid"] = np.array([str(random.random()) for _ in tasks], dtype=object)
    return tu.get_tensordict(rows)


def test_prompts_of_a_step_are_numbered_through_all_fetches_and_anew_in_the_next_step():
    places = GroupNames(1)
    named = []
    for step, tasks in ((1, ("a", "b")), (1, ("c",)), (2, ("a", "b"))):
        prompts = prompts_of(*tasks)
        places.name(prompts, step)
        named.append(list(prompts["uid"]))
        assert list(prompts.chunk(len(tasks))[-1]["uid"]) == named[-1][-1:]
    numbered = [(1, 0, "a"), (1, 1, "b"), (1, 2, "c"), (2, 0, "a"), (2, 1, "b")]
    assert [name for step in named for name in step] == [group_name(1, "train", *which) for which in numbered]


def test_rows_come_in_the_order_of_group_rollout_and_row_whatever_the_order_of_arrival():
    names = [group_name(1, "train", 1, place, f"t{place}") for place in range(12)]
    keys = [f"{name}_{rollout}_{row}" for name in names for rollout in range(11) for row in range(2)]
    for seed in range(3):
        arrived = random.Random(seed).sample(keys, len(keys))
        tags = [{"seq_len": keys.index(key)} for key in arrived]
        batch, _ = ordered(
            lambda arrived=arrived, tags=tags: (KVBatchMeta(partition_id="train", keys=list(arrived), tags=tags), {})
        )()
        assert batch.keys == keys and [tag["seq_len"] for tag in batch.tags] == list(range(len(keys)))


def test_a_validation_is_ordered_by_group_and_rollout():
    records = [
        trajectory(group_id=f"000000-0000{place}-x", rollout_id=rollout) for place in (1, 0) for rollout in (10, 2)
    ]
    assert validation_order(records) == [3, 2, 1, 0]
