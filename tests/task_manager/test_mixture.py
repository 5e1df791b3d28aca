"""Epochs: what is in them, that no task is forgotten, that another is drawn each time, and that a resumed run goes on
exactly."""

import json
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
        ({"synthetic_data_ratio": 0.5}, 10, 5),
        ({"synthetic_data_ratio": 0.59}, 10, 5),
        ({"synthetic_data_ratio": 2.0}, 10, 20),
        ({"synthetic_data_ratio": 999999.0}, 10, 25),
        ({"synthetic_data_ratio": 999999.0, "use_original_tasks": False}, 0, 25),
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


def test_without_shuffling_the_files_order_stays():
    made = mixture(synthetic_data_ratio=0.5, shuffle=False)
    assert made.draw() == [*ORIGINALS, *SYNTHETIC[:5]]
    assert made.draw() == [*ORIGINALS, *SYNTHETIC[5:10]]


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


@settings(max_examples=50, deadline=None)
@given(
    IDS,
    st.lists(st.tuples(st.integers(1, 15), st.sets(st.integers(0, 30).map(str))), min_size=2, max_size=10),
    st.data(),
)
def test_a_round_goes_on_from_its_state_as_if_nothing_had_happened(ids, draws, data):
    cut = data.draw(st.integers(0, len(draws)))
    one, two = (TaskCycle("r", ids, 1, shuffle=True) for _ in range(2))

    def weight(resting):
        return lambda task_id: 0.0 if task_id in resting else 1.0

    for count, resting in draws[:cut]:
        one.take(count, weight(resting))
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for count, resting in draws[cut:]:
        assert one.take(count, weight(resting)) == two.take(count, weight(resting))


def test_resting_tasks_are_passed_over_and_come_back():
    rounds = TaskCycle("r", ["a", "b", "c", "d"], 0, shuffle=True)
    for _ in range(5):
        assert set(rounds.take(4, lambda t: float(t not in "cd"))) == {"a", "b"}
    assert set(rounds.take(4, lambda t: 1.0)) == {"a", "b", "c", "d"}
    assert set(rounds.take(4, lambda t: 0.0)) == {"a", "b", "c", "d"}, "with everything at rest, everything is awake"


def test_heavier_tasks_come_earlier_in_their_round():
    early = Counter()
    for seed in range(300):
        early.update(TaskCycle("r", [*"abcdefghij"], seed, shuffle=True).take(3, lambda t: 5.0 if t == "a" else 1.0))
    assert early["a"] > 1.8 * max(count for task_id, count in early.items() if task_id != "a")


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


def test_a_doubled_id_is_refused():
    with pytest.raises(ValueError, match="'o0' occurs twice"):
        MixedTasks(
            tasks("o", 2), tasks("o", 1), TaskManagerSettings.model_validate({"mixture": {"synthetic_data_ratio": 1}})
        )


@pytest.mark.parametrize("batches_before", range(8))
def test_a_resumed_loader_goes_on_exactly(batches_before):
    def feed(dataset, loader, count):
        out = []
        batches = iter(loader)
        for _ in range(count):
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            out.append([row["task"]["task_id"] for row in batch])
            dataset.record([record(task_id, i % 2) for task_id in out[-1] for i in range(2)])
        return out

    settings = {"curriculum": {"enable": True}}
    whole = mixed(**settings)
    expected = feed(whole, whole.loader(4, list), 14)
    first = mixed(**settings)
    loader = first.loader(4, list)
    assert feed(first, loader, batches_before) == expected[:batches_before]
    state = loader.state_dict()
    second = mixed(**settings)
    resumed = second.loader(4, list)
    resumed.load_state_dict(state)
    assert feed(second, resumed, 14 - batches_before) == expected[batches_before:]


def record(task_id, success, group="g", score=None):
    outcome = {"success": bool(success), "score": float(success) if score is None else score}
    return trajectory(task={"task_id": task_id}, group_id=group, outcome=outcome)


def test_new_tasks_are_drawn_from_the_next_epoch_on():
    dataset = mixed(mixture={"use_original_tasks": False, "synthetic_data_ratio": 999999})
    loader = dataset.loader(3, list)
    size = len(dataset)
    list(loader)
    dataset.add_synthetic([*tasks("s", 3), *tasks("n", 4)])
    assert len(dataset) == size == 9
    seen = {row["task"]["task_id"] for _ in range(2) for batch in loader for row in batch}
    assert {"n0", "n1", "n2", "n3"} <= seen


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
