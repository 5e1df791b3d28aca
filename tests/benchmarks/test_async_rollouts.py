"""What the benchmark of asynchronous rollouts counts: the steps in the middle, by the wall's clock."""

import pytest

from benchmarks.async_rollouts import FIRST_STEPS, LAST_STEPS, Measured, by_age


def records(seconds, **metrics):
    """A validation before the first step, and steps that take so many seconds each."""
    found, now = [{"step": 0, "time": 0.0, "val-core/pocket/reward/mean@4": 0.4}], 0.0
    for step, taken in enumerate(seconds, start=1):
        now += taken
        found.append({"step": step, "time": now, "timing_s/step": taken / 2, "rollout/success": 0.5, **metrics})
    return found


def test_the_first_steps_and_the_last_are_left_out():
    measured = Measured.of(records([50.0, 30.0, 1.0, 2.0, 3.0, 70.0]))
    assert measured.seconds == [1.0, 2.0, 3.0]
    assert [record["step"] for record in measured.records] == [3, 4, 5]
    assert len(measured.seconds) == 6 - FIRST_STEPS - LAST_STEPS


def told(**ages):
    """A step's record of the share and the success of each age."""
    names = ("share", "success")
    return {
        f"rollout/age_{age}/{name}": value
        for age, pair in ages.items()
        for name, value in zip(names, pair, strict=True)
    }


def test_success_by_age_weighs_each_step_by_its_share():
    steps = [
        told(**{"0": (0.75, 1.0), "1": (0.25, 0.5)}),
        told(**{"0": (0.25, 0.0), "4_or_more": (0.75, 0.2)}),
        {"step": 3},
    ]
    assert by_age(steps) == {"0": 0.75, "1": 0.5, "4_or_more": pytest.approx(0.2)}
