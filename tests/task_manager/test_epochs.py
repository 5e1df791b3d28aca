"""Epochs of several environments: the weights hold everywhere in them, each environment keeps to its own tasks, and a
resumed run goes on exactly."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mixture import goes_on_exactly, result

from agentevolver.types import Task
from task_manager.dataset import MixedTasks
from task_manager.epochs import Epochs, assign_places
from task_manager.settings import TaskManagerSettings

WEIGHTS = st.integers(1, 12) | st.floats(0.01, 20)


@settings(max_examples=50, deadline=None)
@given(st.lists(WEIGHTS, min_size=2, max_size=6), st.integers(1, 150))
def test_every_place_of_an_epoch_finds_each_share_right_to_within_one_task(weights, count):
    named = {f"e{i}": weight for i, weight in enumerate(weights)}
    exact = {name: Fraction(weight).limit_denominator(10**6) for name, weight in named.items()}
    shares = {name: weight / sum(exact.values()) for name, weight in exact.items()}
    order, so_far, off = assign_places(named, count), Counter(), {name: [Fraction(0)] for name in named}
    assert len(order) == count
    for place, name in enumerate(order, 1):
        so_far[name] += 1
        for other, share in shares.items():
            off[other].append(so_far[other] - place * share)
    most = 1 - Fraction(1, 2 * len(named) - 2)
    assert max(abs(one) for of in off.values() for one in of) <= most < 1
    # A window is the difference of two places: of two environments right to within one task, of more to within two.
    assert all(max(of) - min(of) <= (1 if len(named) == 2 else 2 * most) for of in off.values())


def tasks(env_type, prefix, n, **more):
    return [Task(f"{prefix}{i}", env_type, **more) for i in range(n)]


# The ids 0, 1, ... are there in both.
POCKET, LAKE = tasks("pocket", "", 12), tasks("lake", "", 4)
SHARES = {"pocket": 2.0, "lake": 1.0}


def mixed(weights=SHARES, synthetic=(), **fields):
    section = {"mixture": {"synthetic_data_ratio": 0.5 if synthetic else 0, **fields.pop("mixture", {})}, **fields}
    return MixedTasks([*POCKET, *LAKE], list(synthetic), TaskManagerSettings.model_validate(section), weights)


def drawn(dataset):
    return [(dataset[row]["task"]["env_type"], dataset[row]["task"]["task_id"]) for row in dataset.draw()]


def test_each_batch_and_each_epoch_has_the_weights_shares_and_groups_of_one_environment():
    dataset = mixed({"pocket": 3, "lake": 1})
    assert len(dataset) == 16
    for _ in range(3):
        batches = list(dataset.loader(8, list))
        assert len(batches) == 2
        for batch in batches:
            assert Counter(row["task"]["env_type"] for row in batch) == {"pocket": 6, "lake": 2}
            assert all(row["data_source"] == row["task"]["env_type"] for row in batch)


@pytest.mark.parametrize("batches_before", [0, 2, 3, 4])
def test_a_resumed_loader_goes_on_exactly(batches_before):
    synthetic = tasks("pocket", "s", 5, open_query=True)
    goes_on_exactly(lambda: mixed(curriculum={"enable": True}, synthetic=synthetic), 6, batches_before)


def test_a_checkpoint_of_other_environments_is_refused_and_new_weights_are_taken():
    before = mixed()
    drawn(before)
    state = before.sampler.state_dict()
    with pytest.raises(ValueError, match="epochs of pocket, lake, this run trains on one environment"):
        MixedTasks(POCKET, [], TaskManagerSettings()).sampler.load_state_dict(state)
    plain = MixedTasks(POCKET, [], TaskManagerSettings())
    with pytest.raises(ValueError, match="of one environment, this run trains on pocket, lake"):
        mixed().sampler.load_state_dict(plain.sampler.state_dict())
    other = mixed({"pocket": 1, "lake": 3})
    other.sampler.load_state_dict(state)
    assert len(other) == 16 and Counter(name for name, _ in drawn(other)) == {"pocket": 4, "lake": 12}


def test_the_plain_form_draws_and_saves_what_it_always_did():
    plain = MixedTasks(POCKET, [], TaskManagerSettings())
    # What the release before several environments drew.
    assert [plain.name(row) for row in plain.draw()] == ["10", "4", "8", "1", "11", "2", "5", "3", "7", "0", "9", "6"]
    assert set(plain.sampler.state_dict()) == {"drawn", "position", "mixture", "curriculum"}


def test_the_curriculum_of_one_environment_hears_nothing_of_another():
    dataset = mixed(curriculum={"enable": True})
    dataset.record([result("lake", "0", True, "g"), result("lake", "0", True, "g")])
    metrics = dataset.epochs.metrics()
    assert metrics["curriculum/resting/lake"] == 1 and metrics["curriculum/known/pocket"] == 0
    drawn(dataset)
    second = drawn(dataset)
    assert ("pocket", "0") in second and ("lake", "0") not in second
    assert dataset.epochs.curriculum("lake").weight("0") == 0 != dataset.epochs.curriculum("pocket").weight("0")


def test_synthetic_tasks_stay_in_their_environments_share():
    dataset = mixed(synthetic=tasks("pocket", "s", 6, open_query=True))
    kinds = Counter((env_type, task_id[0] == "s") for env_type, task_id in drawn(dataset))
    assert len(dataset) == 22 and kinds[("lake", True)] == 0 and kinds[("lake", False)] in (7, 8)
    assert kinds[("pocket", True)] == 5 and kinds[("pocket", False)] + kinds[("pocket", True)] in (14, 15)
    dataset.add_synthetic([*tasks("pocket", "n", 3, open_query=True), *tasks("lake", "n", 1, open_query=True)])
    later = {key for _ in range(4) for key in drawn(dataset)}
    assert ("pocket", "n2") in later and len(dataset) == 22


def test_what_nothing_can_be_drawn_of_is_named():
    settings = TaskManagerSettings()
    with pytest.raises(ValueError, match=r"^bfcl: the mixture is empty"):
        Epochs(settings, POCKET, [], {"pocket": 1, "bfcl": 1})
    with pytest.raises(ValueError, match="lake: its weight gives it none of the 16 tasks of an epoch"):
        mixed({"pocket": 1000, "lake": 1})
    with pytest.raises(ValueError, match="above 0"):
        assign_places({"a": 0.0}, 3)
    with pytest.raises(ValueError, match="'0' occurs twice"):
        MixedTasks([*POCKET, POCKET[0], *LAKE], [], settings, SHARES)
