"""Which rollouts are guided, and which tasks keep their guidance."""

import math

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


@settings(deadline=None)
@given(st.integers(1, 100), RATIOS)
def test_of_any_number_of_tasks_of_a_step_exactly_the_share_keeps_its_guidance(tasks, ratio):
    kept = [keeps_guidance("hybrid", ratio, place) for place in range(tasks)]
    assert sum(kept) == math.floor(ratio * tasks + 1e-9)


@pytest.mark.parametrize(
    ("val", "without", "with_it"), [("woexp", 4, 0), ("mixed", 2, 2), ("all", 0, 4), ("both", 4, 4)]
)
def test_a_validation_task_has_as_many_rollouts_of_each_kind_as_its_mode_says(val, without, with_it):
    chosen = mode(val=val, ratio=0.5)
    assert validation_rollouts(chosen, 4) == (without, with_it)
    guided = [is_guided(chosen, "g", i, 4, validation=True) for i in range(without + with_it)]
    assert (guided.count(False), guided.count(True)) == (without, with_it)
