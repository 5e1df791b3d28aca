"""Task files: whole, in order, and one task a line."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from agentevolver.types import Task
from task_manager.dataset import TaskDataset
from task_manager.tasks import environment_tasks, family_of, stratified, write_tasks


class Lister:
    def __init__(self, ids):
        self.ids = ids

    async def get_env_profile(self, env_type, split="train", params=None):
        return self.ids


def test_an_environments_tasks_keep_their_order_and_say_what_they_are_for():
    tasks = asyncio.run(environment_tasks(Lister(["z", "a"]), "pocket", "dev", validation=True))
    assert [(t.task_id, t.metadata) for t in tasks] == [(i, {"split": "dev", "validation": True}) for i in ("z", "a")]


@pytest.mark.parametrize(("ids", "message"), [([], "lists no task"), (["a", "a"], "twice")])
def test_an_empty_or_doubled_split_is_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        asyncio.run(environment_tasks(Lister(ids), "pocket", "dev"))


@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 80),
    st.integers(0, 9),
    st.randoms(),
)
def test_a_drawn_subset_has_each_familys_share_in_any_order(sizes, count, seed, random):
    tasks = [Task(f"{family}.{number}", "e") for family, size in sizes.items() for number in range(size)]
    shuffled = random.sample(tasks, len(tasks))
    drawn = stratified(shuffled, count, seed)
    assert len(drawn) == min(count, len(tasks)) and drawn == [task for task in shuffled if task in drawn]
    assert {task.task_id for task in drawn} == {task.task_id for task in stratified(tasks, count, seed)}
    found = Counter(family_of(task.task_id, {}) for task in drawn)
    assert all(abs(found[name] - len(drawn) / len(tasks) * size) < 1 for name, size in sizes.items())


def dataset(tmp_path, tasks, **kwargs):
    write_tasks(tmp_path / "t.jsonl", tasks)
    return TaskDataset(str(tmp_path / "t.jsonl"), tokenizer=None, config=OmegaConf.create({}), **kwargs)


def test_a_row_carries_its_task_to_the_agent_loop(tmp_path):
    tasks = [Task("a", "pocket"), Task("b", "pocket", ground_truth="x")]
    rows = dataset(tmp_path, tasks)
    assert len(rows) == 2
    assert Task.from_dict(rows[1]["task"]) == tasks[1]
    assert rows[1]["index"] == 1 and rows[1]["reward_model"]["ground_truth"] == "x"
    assert len(dataset(tmp_path, tasks, max_samples=1)) == 1


def test_several_splits_are_reported_apart(tmp_path):
    one = dataset(tmp_path, [Task("a", "pocket", metadata={"split": "dev"})])
    two = dataset(tmp_path, [Task("a", "pocket", metadata={"split": s}) for s in ("dev", "test")])
    assert one[0]["data_source"] == "pocket"
    assert [two[i]["data_source"] for i in range(2)] == ["pocket/dev", "pocket/test"]
