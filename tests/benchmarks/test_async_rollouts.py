"""What the benchmark of asynchronous rollouts counts: the steps in the middle, by the wall's clock."""

import io

import pytest
from rich.console import Console

from benchmarks import async_rollouts
from benchmarks.async_rollouts import FIRST_STEPS, LAST_STEPS, Measured, by_age, print_steps


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


def test_the_table_says_what_async_gains(monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr(async_rollouts, "Console", lambda **_: Console(file=told, width=200))
    old = {"rollout/staleness/mean": 1.0, "rollout/staleness/max": 3.0, "rollout/spans_updates": 0.25}
    print_steps(
        {
            ("3 % slow", "sync"): [Measured.of(records([9.0] * 3 + [6.0] * 4 + [9.0]))],
            ("3 % slow", "async"): [Measured.of(records([9.0] * 3 + [4.0] * 4 + [9.0], **old))],
        }
    )
    lines = [line for line in told.getvalue().splitlines() if "slow" in line]
    assert "6.00" in lines[0] and "1.00" in lines[0]
    assert "4.00" in lines[1] and "1.50" in lines[1] and "1.00, 3" in lines[1] and "25%" in lines[1]


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
