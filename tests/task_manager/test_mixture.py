"""Epochs: what is in them, that no task is forgotten, that another is drawn each time, and that a resumed run goes on
exactly."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.types import Task
from task_manager.dataset import SCALE_KEY, MixedTasks
from task_manager.mixture import Mixture, TaskCycle
from task_manager.settings import MixtureSettings, TaskManagerSettings
from tests.trajectories import trajectory

ORIGINALS = [f"o{i}" for i in range(10)]
SYNTHETIC = [f"s{i}" for i in range(25)]


def mixture(**fields):
    return Mixture(MixtureSettings(**fields), ORIGINALS, SYNTHETIC)


@pytest.mark.parametrize(
    ("fields", "n_originals", "n_synthetic"),
    [
        ({}, 10, 0),
        ({"synthetic_data_ratio": 0.59}, 10, 5),
        ({"synthetic_data_ratio": 999999.0}, 10, 25),
        ({"synthetic_data_ratio": 1.0, "use_original_tasks": False}, 0, 10),
    ],
)
def test_the_ratio_counts_synthetic_tasks_per_original_one(fields, n_originals, n_synthetic):
    made = mixture(**fields)
    for _ in range(3):
        epoch = made.draw()
        assert len(epoch) == len(made) == n_originals + n_synthetic
        assert Counter(task_id[0] for task_id in epoch) == +Counter(o=n_originals, s=n_synthetic)
        assert len(set(epoch)) == len(epoch)


def test_each_epoch_is_another_draw_and_every_synthetic_task_comes_before_one_repeats():
    made = mixture(synthetic_data_ratio=0.5)
    epochs = [made.draw() for _ in range(10)]
    drawn = [[task_id for task_id in epoch if task_id[0] == "s"] for epoch in epochs]
    assert len({tuple(sorted(d)) for d in drawn}) > 5
    assert sorted(chain(*drawn[:5])) == sorted(chain(*drawn[5:])) == sorted(SYNTHETIC)
    assert drawn[:5] != drawn[5:]


IDS = st.lists(st.integers(0, 30).map(str), min_size=1, max_size=12, unique=True)


@settings(max_examples=50, deadline=None)
@given(IDS, st.lists(st.integers(1, 15), min_size=1, max_size=12), st.booleans(), st.integers(0, 5))
def test_a_round_never_repeats_while_something_is_left(ids, counts, shuffle, seed):
    rounds = TaskCycle("r", ids, seed, shuffle=shuffle)
    seen = Counter()
    for count in counts:
        draw = rounds.take(count, lambda task_id: 1.0)
        assert len(draw) == count
        seen.update(draw)
        assert max(seen.values()) - min(seen[i] for i in ids) <= 2
        assert len(set(draw)) == min(count, len(ids))
    total = sum(counts)
    assert max(seen.values()) <= -(-total // len(ids)) + 1


def test_resting_tasks_are_passed_over_and_come_back():
    rounds = TaskCycle("r", ["a", "b", "c", "d"], 0, shuffle=True)
    for _ in range(5):
        assert set(rounds.take(4, lambda t: float(t not in "cd"))) == {"a", "b"}
    assert set(rounds.take(4, lambda t: 1.0)) == {"a", "b", "c", "d"}
    assert set(rounds.take(4, lambda t: 0.0)) == {"a", "b", "c", "d"}, "with everything at rest, everything is awake"


def test_new_tasks_join_the_round_that_runs_and_those_that_are_gone_leave():
    rounds = TaskCycle("r", ["a", "b"], 0, shuffle=True)
    rounds.take(1, lambda t: 1.0)
    rounds.add(["b", "c"])
    assert set(rounds.take(2, lambda t: 1.0)) | {"a", "b"} == {"a", "b", "c"}
    later = TaskCycle("r", ["b", "c", "d"], 0, shuffle=True)
    later.load_state_dict(rounds.state_dict())
    assert set(later.take(3, lambda t: 1.0)) == {"b", "c", "d"}


def tasks(prefix, n):
    return [Task(f"{prefix}{i}", "pocket", metadata={"split": "train"}) for i in range(n)]


def mixed(**fields):
    section = {"mixture": {"synthetic_data_ratio": 0.5, **fields.pop("mixture", {})}, **fields}
    return MixedTasks(tasks("o", 8), tasks("s", 9), TaskManagerSettings.model_validate(section))


def test_synthetic_tasks_count_half_in_a_hybrid_mixture_and_fully_alone():
    hybrid = mixed()
    scales = {hybrid[i]["task"]["task_id"][0]: hybrid[i]["task"]["metadata"].get(SCALE_KEY) for i in range(17)}
    assert scales == {"o": None, "s": 0.5}
    alone = mixed(mixture={"use_original_tasks": False})
    assert all(SCALE_KEY not in alone[i]["task"]["metadata"] for i in range(17))
    assert Task.from_dict(hybrid[16]["task"]).task_id == "s8" and hybrid[16]["index"] == 16


@pytest.mark.parametrize("batches_before", [0, 3, 4, 5])
def test_a_resumed_loader_goes_on_exactly(batches_before):
    goes_on_exactly(lambda: mixed(curriculum={"enable": True}), 4, batches_before)


def result(env_type, task_id, success, group):
    outcome = {"success": bool(success), "score": float(success)}
    return trajectory(task={"task_id": task_id, "env_type": env_type}, group_id=group, outcome=outcome)


def goes_on_exactly(make, size, batches_before):
    """A dataset that was saved after so many batches draws what one draws that was not."""

    def feed(dataset, loader, count):
        out, batches = [], iter(loader)
        while len(out) < count:
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                continue
            out.append([(row["task"]["env_type"], row["task"]["task_id"]) for row in batch])
            dataset.record([result(*key, i % 2, f"{key}") for key in out[-1] for i in range(2)])
        return out

    whole, first, second = make(), make(), make()
    expected = feed(whole, whole.loader(size, list), 12)
    loader, resumed = first.loader(size, list), second.loader(size, list)
    assert feed(first, loader, batches_before) == expected[:batches_before]
    resumed.load_state_dict(loader.state_dict())
    assert feed(second, resumed, 12 - batches_before) == expected[batches_before:]


def test_a_checkpoint_whose_tasks_are_gone_says_which():
    dataset = mixed()
    loader = dataset.loader(4, list)
    next(iter(loader))
    state = dataset.sampler.state_dict()
    other = MixedTasks(
        tasks("o", 8), tasks("t", 9), TaskManagerSettings.model_validate({"mixture": {"synthetic_data_ratio": 0.5}})
    )
    with pytest.raises(ValueError, match="restore their file"):
        other.sampler.load_state_dict(state)
