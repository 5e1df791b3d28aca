"""Which rollouts are guided, and which tasks keep their guidance."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experience_manager.guide import guided_count, guided_rollouts, is_guided, keeps_guidance, validation_rollouts
from experience_manager.settings import ExperienceSettings

SIZES = st.integers(1, 64)
RATIOS = st.floats(0, 1)


def mode(train="woexp", val="woexp", ratio=0.0, **more):
    return ExperienceSettings(
        train_rollout_mode=train,
        val_rollout_mode=val,
        rollout_ratio=ratio,
        reme={"enable_context_generator": True},
        **more,
    )


@settings(deadline=None)
@given(SIZES, RATIOS, st.sampled_from(["floor", "round"]))
def test_without_experience_none_and_with_all_every_rollout_is_guided(n, ratio, rounding):
    assert guided_count(n, "woexp", ratio, rounding) == 0
    assert guided_count(n, "all", ratio, rounding) == n


@pytest.mark.parametrize(
    ("n", "ratio", "floor", "nearest"),
    [(8, 0.5, 4, 4), (5, 0.5, 2, 2), (7, 0.5, 3, 4), (8, 0.7, 5, 6), (10, 0.7, 7, 7), (3, 0.9, 2, 3), (8, 0.05, 0, 0)],
)  # fmt: skip
def test_the_share_is_rounded_down_as_in_the_paper_or_to_the_nearest_as_in_the_original(n, ratio, floor, nearest):
    assert guided_count(n, "mixed", ratio, "floor") == floor
    assert guided_count(n, "mixed", ratio, "round") == nearest


@settings(deadline=None)
@given(SIZES, st.integers(0, 64))
def test_a_share_that_is_a_whole_number_is_that_number_under_both_roundings(n, k):
    k = min(k, n)
    assert guided_count(n, "mixed", k / n, "floor") == guided_count(n, "mixed", k / n, "round") == k


@settings(deadline=None)
@given(SIZES, RATIOS)
def test_rounding_is_off_by_less_than_one_rollout_and_never_up_under_floor(n, ratio):
    assert 0 <= guided_count(n, "mixed", ratio, "floor") <= ratio * n + 1e-6
    assert abs(guided_count(n, "mixed", ratio, "floor") - ratio * n) < 1
    assert abs(guided_count(n, "mixed", ratio, "round") - ratio * n) <= 0.5


@settings(deadline=None)
@given(st.text(max_size=20), SIZES, RATIOS)
def test_a_group_has_exactly_its_share_of_guided_rollouts_and_always_the_same_ones(group, n, ratio):
    chosen = guided_rollouts(group, n, "mixed", ratio, "floor")
    assert len(chosen) == guided_count(n, "mixed", ratio, "floor") and chosen <= set(range(n))
    assert chosen == guided_rollouts(group, n, "mixed", ratio, "floor")


def test_over_many_groups_every_rollout_number_is_guided_about_equally_often():
    counts = Counter(i for g in range(2000) for i in guided_rollouts(f"g{g}", 8, "mixed", 0.5, "floor"))
    assert all(abs(counts[i] - 1000) < 150 for i in range(8))


def test_training_and_validation_have_modes_of_their_own():
    settings = mode(train="mixed", val="all", ratio=0.5)
    assert sum(is_guided(settings, "g", i, 8, validation=False) for i in range(8)) == 4
    assert all(is_guided(settings, "g", i, 8, validation=True) for i in range(8))
    settings = mode(train="all", val="woexp")
    assert all(is_guided(settings, "g", i, 8, validation=False) for i in range(8))
    assert not any(is_guided(settings, "g", i, 8, validation=True) for i in range(8))


def test_the_rounding_of_the_preset_counts():
    for preset, count in (("paper", 3), ("original", 4)):
        settings = mode(train="mixed", ratio=0.5, preset=preset)
        assert sum(is_guided(settings, "g", i, 7, validation=False) for i in range(7)) == count


@settings(deadline=None)
@given(st.integers(1, 100), RATIOS)
def test_of_any_number_of_tasks_of_a_step_exactly_the_share_keeps_its_guidance(tasks, ratio):
    kept = [keeps_guidance("hybrid", ratio, place) for place in range(tasks)]
    assert sum(kept) == math.floor(ratio * tasks + 1e-9)


def test_all_tasks_keep_or_discard_whatever_the_ratio():
    assert all(keeps_guidance("allkeep", 0.0, place) for place in range(5))
    assert not any(keeps_guidance("alldiscard", 1.0, place) for place in range(5))


@pytest.mark.parametrize(
    ("val", "without", "with_it"), [("woexp", 4, 0), ("mixed", 2, 2), ("all", 0, 4), ("both", 4, 4)]
)
def test_a_validation_task_has_as_many_rollouts_of_each_kind_as_its_mode_says(val, without, with_it):
    chosen = mode(val=val, ratio=0.5)
    assert validation_rollouts(chosen, 4) == (without, with_it)
    guided = [is_guided(chosen, "g", i, 4, validation=True) for i in range(without + with_it)]
    assert (guided.count(False), guided.count(True)) == (without, with_it)
