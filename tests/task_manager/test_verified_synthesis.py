"""Verified synthesis on gymnasium over the service, in small; tests/chaos has it whole, on mcp too, and trains on its
tasks."""

from __future__ import annotations

import pytest
from knowing_minds import GymnasiumMind
from synthesis_driver import kept_tasks, recheck

pytestmark = pytest.mark.service


@pytest.mark.parametrize("world", ["FrozenLake-v1", "Taxi-v4"])
async def test_what_is_kept_is_right_and_of_many_kinds_and_no_planted_reference_is(world, tmp_path):
    mind = GymnasiumMind()
    tasks, funnel, findings = await kept_tasks(
        "gymnasium", mind, tmp_path, seeds=4, list_params={"worlds": [world]}, check=recheck
    )
    assert len(tasks) >= 6 and len({mind.kind(task.query) for task in tasks}) >= 4
    assert all(mind.is_right(task.metadata["seed_task_id"], task.query, task.metadata["solution"]) for task in tasks)
    assert mind.sorts.total() == len(mind.planted) == 8 and len(mind.sorts) >= 3
    assert not any(
        mind.is_planted(task.metadata["seed_task_id"], task.query, task.metadata["solution"]) for task in tasks
    )
    assert {task.evaluator for task in tasks} == {"state"} and findings == [None] * len(tasks)
    assert funnel.unchecked == 0 and 0 < funnel.executed < funnel.verified, (
        "some references were refused, and the funnel says so"
    )
