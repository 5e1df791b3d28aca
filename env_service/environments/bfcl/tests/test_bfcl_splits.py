"""Splits: nothing of a scenario on both sides, nothing lost, the same everywhere."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.bfcl.package import CATEGORIES

VAL_SCENARIOS = [7, 11, 18, 22, 39, 53, 58, 63, 69, 92, 93, 98, 101, 109, 128, 135, 151, 179, 180, 183]


def scenarios(ids: list[str]) -> set[str]:
    return {task_id.rsplit("_", 1)[1] for task_id in ids}


def test_the_default_splits_share_no_scenario_and_cover_everything() -> None:
    splits = {name: BfclEnv.get_query_list(name) for name in ("train", "val", "test")}
    assert {name: len(ids) for name, ids in splits.items()} == {"train": 480, "val": 80, "test": 240}
    for one, other in itertools.combinations(splits.values(), 2):
        assert not scenarios(one) & scenarios(other)
    assert sorted(itertools.chain(*splits.values())) == sorted(BfclEnv.get_query_list("full"))


def test_categories_may_differ_between_train_and_test_without_sharing_a_scenario() -> None:
    train = BfclEnv.get_query_list("train", {"categories": ["base"]})
    test = BfclEnv.get_query_list("test", {"categories": ["miss_func", "multi_turn_long_context"]})
    assert (len(train), len(test)) == (120, 120)
    assert all(task_id.startswith("multi_turn_base_") for task_id in train)
    assert not scenarios(train) & scenarios(test)


def test_the_cut_is_the_same_everywhere() -> None:
    assert BfclEnv.get_query_list("val", {"categories": ["base"]}) == [
        f"multi_turn_base_{number}" for number in VAL_SCENARIOS
    ]


def test_agentevolvers_cut_is_each_category_in_half_in_order() -> None:
    train = BfclEnv.get_query_list("train", {"split_by": "agentevolver"})
    val = BfclEnv.get_query_list("val", {"split_by": "agentevolver"})
    assert train == [f"{category}_{number}" for category in CATEGORIES for number in range(100)]
    assert val == [f"{category}_{number}" for category in CATEGORIES for number in range(100, 200)]


@pytest.mark.parametrize(
    ("split", "params", "message"),
    [
        ("dev", {}, "unknown split 'dev'"),
        ("test", {"split_by": "agentevolver"}, "unknown split 'test'"),
        ("train", {"split_by": "luck"}, "it can be 'scenario' or 'agentevolver'"),
        ("train", {"categories": ["bass"]}, "unknown BFCL categories"),
        ("train", {"categories": "base"}, "give a list"),
        ("train", {"categories": []}, "give a list"),
        ("train", {"category": ["base"]}, "did you mean `categories`"),
    ],
)
def test_wrong_names_are_the_callers_error(split: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BfclEnv.get_query_list(split, params)
